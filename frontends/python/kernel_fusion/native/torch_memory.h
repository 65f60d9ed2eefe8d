/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's own exception where its allocator has no memory: torch.OutOfMemoryError, which programs
   catch to try less. The stable ABI has error codes alone. A handler finds an exception by its
   class's name, which is declared here; its object is made by PyTorch's own constructor, looked up
   in the libtorch that is loaded. Where that is missing it is a runtime_error with the same words.
 */
#ifndef KF_NATIVE_TORCH_MEMORY_H
#define KF_NATIVE_TORCH_MEMORY_H

#include <cxxabi.h>
#include <dlfcn.h>
#include <string.h>

#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>

namespace c10 /* as in c10/util/Exception.h: the names, and the parameters of the constructor; no
                 object is made of these classes */
{
struct SourceLocation {
    const char *function, *file;
    uint32_t line;
};
struct Error : std::exception {};
struct OutOfMemoryError : Error {};
} // namespace c10
enum { KFS_ERROR_BYTES = 4096 }; /* more than any version's exception has */
static void (*make_error)(void *, c10::SourceLocation, std::string);
static const char *(*error_text)(
    void); /* of newer versions: what the last function of the stable ABI failed of */

static void look_up_memory(void *library)
{
    *(void **)&error_text = dlsym(library, "torch_exception_get_what_without_backtrace");
#if _GLIBCXX_USE_CXX11_ABI
    *(void **)&make_error = dlsym(
        library,
        "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
#endif
}

/* Why the allocator failed, as PyTorch says it; nothing of versions that do not tell. */
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
    abi::__cxa_throw(error, const_cast<std::type_info *>(&typeid(c10::OutOfMemoryError)),
                     NULL); /* what it has allocated stays */
}

#endif
