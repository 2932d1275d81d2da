/* SPDX-License-Identifier: MIT */
/* How the code begins that the stand-in of hiprtc makes and that of HIP loads: hip_image.c. */
#ifndef GPUCR_SIM_HIP_TEXT_H
#define GPUCR_SIM_HIP_TEXT_H

#define HIP_TEXT_HEAD "gpucrfs simulated code\n"

#endif
