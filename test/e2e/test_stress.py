# SPDX-License-Identifier: MIT
"""Draft: random verbs over many programs, helpers and daemons killed."""
