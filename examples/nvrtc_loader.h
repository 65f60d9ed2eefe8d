// SPDX-License-Identifier: Apache-2.0
// A loader for KF_LOAD_KERNEL, for you to copy. NVRTC compiles a kernel on first use, for the
// device of the current context; the program keeps it. Link with -lnvrtc -lcuda. 07_nvrtc.cpp uses
// it.
#ifndef NVRTC_LOADER_H
#define NVRTC_LOADER_H

#include <cuda.h>
#include <nvrtc.h>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

struct nvrtc_loader {
    std::string source;               // "#include <kf/ops/add.cuh>", or a text of `kfgen source`
    std::vector<std::string> options; // "-Iprefix/include", "-I/usr/local/cuda/include"
    std::mutex mutex;
    std::map<std::pair<CUcontext, std::string>, CUfunction> loaded;

    // Thread-safe; called before each launch. Kernels already loaded in a context are only looked
    // up.
    CUresult load(const char *name, CUfunction *function)
    {
        CUcontext context = nullptr;
        const CUresult status = cuCtxGetCurrent(&context);
        if (status != CUDA_SUCCESS) return status;
        const std::lock_guard<std::mutex> lock(mutex);
        CUfunction &found = loaded[std::make_pair(context, std::string(name))];
        const CUresult result = found ? CUDA_SUCCESS : compile(name, &found);
        *function = found;
        return result;
    }

    CUresult compile(const char *name, CUfunction *function)
    {
        CUdevice device = 0;
        int major = 0, minor = 0;
        const CUresult status = cuCtxGetDevice(&device);
        if (status != CUDA_SUCCESS) return status;
        cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
        cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
        const std::string architecture = "-arch=sm_" + std::to_string(10 * major + minor) +
                                         (major == 9 ? "a" : ""); // every feature of 9.0
        std::vector<const char *> words(1, architecture.c_str());
        for (const std::string &option : options) words.push_back(option.c_str());

        nvrtcProgram program;
        if (nvrtcCreateProgram(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr) !=
            NVRTC_SUCCESS)
            return CUDA_ERROR_UNKNOWN;
        const bool compiled =
            nvrtcAddNameExpression(program, name) == NVRTC_SUCCESS &&
            nvrtcCompileProgram(program, (int)words.size(), words.data()) == NVRTC_SUCCESS;
        const CUresult result = compiled ? take(program, name, function) : complain(program);
        nvrtcDestroyProgram(&program);
        return result;
    }

    static CUresult take(nvrtcProgram program, const char *name, CUfunction *function)
    {
        const char *lowered = nullptr;
        size_t size = 0;
        CUmodule module = nullptr;
        if (nvrtcGetLoweredName(program, name, &lowered) != NVRTC_SUCCESS ||
            nvrtcGetCUBINSize(program, &size) != NVRTC_SUCCESS)
            return CUDA_ERROR_UNKNOWN;
        std::vector<char> cubin(size);
        if (nvrtcGetCUBIN(program, cubin.data()) != NVRTC_SUCCESS) return CUDA_ERROR_UNKNOWN;
        const CUresult status = cuModuleLoadData(&module, cubin.data());
        return status == CUDA_SUCCESS ? cuModuleGetFunction(function, module, lowered) : status;
    }

    static CUresult complain(nvrtcProgram program)
    {
        size_t size = 0;
        nvrtcGetProgramLogSize(program, &size);
        std::string log(size, ' ');
        nvrtcGetProgramLog(program, &log[0]);
        std::fprintf(stderr, "%s\n", log.c_str());
        return CUDA_ERROR_INVALID_SOURCE;
    }
};

#endif
