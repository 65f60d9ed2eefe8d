/* SPDX-License-Identifier: Apache-2.0 */
/* Throws PyTorch's torch.OutOfMemoryError, which programs catch to retry with less memory. The
   stable ABI only has error codes. Handlers match exceptions by class name, declared here;
   PyTorch's own constructor, looked up in the loaded libtorch, makes the object. Without the
   constructor a runtime_error with the same text is thrown. */
#ifndef KF_NATIVE_TORCH_MEMORY_H
#define KF_NATIVE_TORCH_MEMORY_H

#include <cxxabi.h>
#include <dlfcn.h>
#include <string.h>

#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>

/* Declarations as in c10/util/Exception.h: class names and constructor parameters. No object of
   these classes is constructed here. */
namespace c10
{
struct SourceLocation {
    const char *function, *file;
    uint32_t line;
};
struct Error : std::exception {};
struct OutOfMemoryError : Error {};
} // namespace c10
enum { KFS_ERROR_BYTES = 4096 }; /* at least the size of the exception in every version */
static void (*make_error)(void *, c10::SourceLocation, std::string);
/* Only in newer versions: the error of the last failed function of the stable ABI. */
static const char *(*error_text)(void);

static void look_up_memory(void *library)
{
    *(void **)&error_text = dlsym(library, "torch_exception_get_what_without_backtrace");
#if _GLIBCXX_USE_CXX11_ABI
    *(void **)&make_error = dlsym(
        library,
        "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
#endif
}

/* PyTorch's text about a failed allocation; empty in older versions. */
static const char *why_no_memory(void)
{
    const char *text = error_text ? error_text() : NULL;
    return text ? text : "";
}

static bool is_out_of_memory(const char *text)
{
    return !*text || strstr(text, "out of memory") || strstr(text, "can't allocate memory");
}

[[noreturn]] static void throw_out_of_memory(const char *text)
{
    if (!make_error) throw std::runtime_error(text);
    void *error = abi::__cxa_allocate_exception(KFS_ERROR_BYTES);
    make_error(error, c10::SourceLocation{"kf", "torch_shim.cpp", 0}, std::string(text));
    /* Without a destructor, the exception's own allocations leak. */
    abi::__cxa_throw(error, const_cast<std::type_info *>(&typeid(c10::OutOfMemoryError)), NULL);
}

#endif
