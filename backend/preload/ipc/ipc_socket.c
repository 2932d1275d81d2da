/* SPDX-License-Identifier: MIT */
/* The names of the sockets of legacy IPC. */
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "backend/preload/ipc/ipc.h"

unsigned int gcr_ipc_address(const uint8_t process[16], struct sockaddr_un *ret_address)
{
	int length;

	/* Abstract: no file is left behind, however the process ends. */
	*ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
	length = snprintf(ret_address->sun_path + 1, sizeof(ret_address->sun_path) - 1,
			  "gpucr-ipc-");
	for (size_t i = 0; i < 16; i++)
		length += snprintf(ret_address->sun_path + 1 + length,
				   sizeof(ret_address->sun_path) - 1 - (size_t)length, "%02x",
				   process[i]);
	return (unsigned int)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}
