/* What LAMMPS of 2022 expects of <cuda.h> and CUDA 13 changed: included before
 * each of its sources. */
#ifndef PARAGPU_TESTS_LAMMPS_CUDA_H
#define PARAGPU_TESTS_LAMMPS_CUDA_H

#ifdef __cplusplus
#include <cuda.h>

#undef cuCtxCreate
/* The three arguments that it had before CUDA 13. */
static inline CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	return cuCtxCreate_v4(context, 0, flags, device);
}
#endif

#endif
