/* SPDX-License-Identifier: MIT */
/* The sockets of legacy IPC: their names, and who may be at the other end. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

int gcr_ipc_trusted(int socket)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
		return -errno;
	return peer.uid == 0 || peer.uid == geteuid() ? 0 : -EPERM;
}
