/* SPDX-License-Identifier: MIT */
/*
 * The first bytes of code made by the simulated hiprtc and loaded by the simulated HIP:
 * hip_image.c.
 */
#ifndef GPUCR_SIM_HIP_TEXT_H
#define GPUCR_SIM_HIP_TEXT_H

#define HIP_TEXT_HEAD "gpucrfs simulated code\n"

#endif
