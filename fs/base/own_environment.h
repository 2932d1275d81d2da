/* SPDX-License-Identifier: MIT */
/* The daemon's own environment, which can be that of another user (su, sudo -E). */
#ifndef GCR_FS_BASE_OWN_ENVIRONMENT_H
#define GCR_FS_BASE_OWN_ENVIRONMENT_H

/*
 * Of root's daemon: takes out of PATH what another user can change, and removes HOME and
 * LD_LIBRARY_PATH if another user can change anything that they name. Logs what goes. To be called
 * before there are threads. 0; -ENOMEM, without a message.
 */
int gcr_own_environment_check(void);

#endif
