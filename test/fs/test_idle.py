#!/usr/bin/env python3
"""Draft."""
raise SystemExit(77)
