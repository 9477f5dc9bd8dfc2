/* Stands in for libcuda.so.1, without which NIXL 0.5 to 0.7 don't load their UCX plugin: every call says that there
 * is no device. */
#define NO_DEVICE(name)                                                                            \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 100;                                                                                \
    }

/* clang-format off */
NO_DEVICE(cuCtxGetCurrent) NO_DEVICE(cuCtxGetDevice) NO_DEVICE(cuCtxGetId) NO_DEVICE(cuCtxPopCurrent_v2)
NO_DEVICE(cuCtxPushCurrent_v2) NO_DEVICE(cuCtxSetCurrent) NO_DEVICE(cuDeviceGet) NO_DEVICE(cuDeviceGetAttribute)
NO_DEVICE(cuDeviceGetCount) NO_DEVICE(cuDeviceGetName) NO_DEVICE(cuDeviceGetUuid)
NO_DEVICE(cuDevicePrimaryCtxGetState) NO_DEVICE(cuDevicePrimaryCtxRelease_v2)
NO_DEVICE(cuDevicePrimaryCtxRetain) NO_DEVICE(cuDeviceTotalMem_v2) NO_DEVICE(cuEventCreate)
NO_DEVICE(cuEventDestroy_v2) NO_DEVICE(cuEventQuery) NO_DEVICE(cuEventRecord)
NO_DEVICE(cuFlushGPUDirectRDMAWrites) NO_DEVICE(cuGetErrorString) NO_DEVICE(cuGetProcAddress_v2)
NO_DEVICE(cuInit) NO_DEVICE(cuIpcCloseMemHandle) NO_DEVICE(cuIpcGetMemHandle) NO_DEVICE(cuIpcOpenMemHandle_v2)
NO_DEVICE(cuMemAddressFree) NO_DEVICE(cuMemAddressReserve) NO_DEVICE(cuMemAllocManaged) NO_DEVICE(cuMemAlloc_v2)
NO_DEVICE(cuMemCreate) NO_DEVICE(cuMemExportToShareableHandle) NO_DEVICE(cuMemFree_v2)
NO_DEVICE(cuMemGetAddressRange_v2) NO_DEVICE(cuMemGetAllocationGranularity)
NO_DEVICE(cuMemGetAllocationPropertiesFromHandle) NO_DEVICE(cuMemGetHandleForAddressRange)
NO_DEVICE(cuMemHostGetDevicePointer_v2) NO_DEVICE(cuMemHostRegister_v2) NO_DEVICE(cuMemHostUnregister)
NO_DEVICE(cuMemImportFromShareableHandle) NO_DEVICE(cuMemMap) NO_DEVICE(cuMemPoolDestroy)
NO_DEVICE(cuMemPoolExportPointer) NO_DEVICE(cuMemPoolExportToShareableHandle)
NO_DEVICE(cuMemPoolImportFromShareableHandle) NO_DEVICE(cuMemPoolImportPointer) NO_DEVICE(cuMemPoolSetAccess)
NO_DEVICE(cuMemRangeGetAttribute) NO_DEVICE(cuMemRelease) NO_DEVICE(cuMemRetainAllocationHandle)
NO_DEVICE(cuMemSetAccess) NO_DEVICE(cuMemUnmap) NO_DEVICE(cuMemcpyAsync) NO_DEVICE(cuMemcpyDtoDAsync_v2)
NO_DEVICE(cuPointerGetAttribute) NO_DEVICE(cuPointerGetAttributes) NO_DEVICE(cuPointerSetAttribute)
NO_DEVICE(cuStreamAddCallback) NO_DEVICE(cuStreamCreate) NO_DEVICE(cuStreamDestroy_v2)
NO_DEVICE(cuStreamSynchronize)
