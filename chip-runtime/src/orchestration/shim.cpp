// What Rust cannot be: functions with a variable number of arguments, and a caller that catches exceptions.
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <typeinfo>

extern "C" {

// The Rust side.
void chipcomm_runtime_report_fatal(void *runtime, int32_t code, const char *function, const char *text);
void chipcomm_runtime_log(int32_t level, const char *function, const char *text);

}  // extern "C"

namespace {

constexpr size_t kText = 2048;

// `text` is what the arguments say, cut where it is too long.
void format(char (&text)[kText], const char *pattern, va_list args) {
    if (pattern == nullptr || std::vsnprintf(text, kText, pattern, args) < 0) {
        text[0] = '\0';
    }
}

// The exception that is being handled: its type, and what it says if it is a std::exception.
void describe(char *text, size_t capacity, const char *what) {
    const std::type_info *type = abi::__cxa_current_exception_type();
    const char *name = type != nullptr ? type->name() : "an exception that is none of C++";
    int status = 0;
    char *readable = type != nullptr ? abi::__cxa_demangle(name, nullptr, nullptr, &status) : nullptr;
    std::snprintf(text, capacity, what != nullptr ? "%s: %s" : "%s", readable != nullptr ? readable : name, what);
    std::free(readable);
}

template <typename Call>
int caught(char *text, size_t capacity, Call call) {
    try {
        call();
        return 0;
#ifdef __GLIBCXX__
    } catch (const abi::__forced_unwind &) {
        throw;  // A thread that ends (pthread_exit, pthread_cancel) cannot be stopped.
#endif
    } catch (const std::exception &error) {
        describe(text, capacity, error.what());
    } catch (const char *error) {
        describe(text, capacity, error);
    } catch (...) {
        describe(text, capacity, nullptr);
    }
    return 1;
}

}  // namespace

extern "C" {

// Calls an entry or a kernel. Not 0 when it threw; `text` then says what.
int chipcomm_shim_call(void (*function)(void *), void *args, char *text, size_t capacity) {
    return caught(text, capacity, [&] { function(args); });
}

// The same for a config function.
int chipcomm_shim_config(int (*function)(const void *), const void *args, int *result, char *text, size_t capacity) {
    return caught(text, capacity, [&] { *result = function(args); });
}

void chipcomm_shim_report_fatal(void *runtime, int32_t code, const char *function, const char *pattern, ...) {
    char text[kText];
    va_list args;
    va_start(args, pattern);
    format(text, pattern, args);
    va_end(args);
    chipcomm_runtime_report_fatal(runtime, code, function, text);
}

#define CHIPCOMM_SHIM_LOG(name, level)                         \
    void name(const char *function, const char *pattern, ...) { \
        char text[kText];                                      \
        va_list args;                                          \
        va_start(args, pattern);                               \
        format(text, pattern, args);                           \
        va_end(args);                                          \
        chipcomm_runtime_log(level, function, text);           \
    }

CHIPCOMM_SHIM_LOG(chipcomm_shim_log_error, 0)
CHIPCOMM_SHIM_LOG(chipcomm_shim_log_warn, 1)
CHIPCOMM_SHIM_LOG(chipcomm_shim_log_timing, 2)
CHIPCOMM_SHIM_LOG(chipcomm_shim_log_info, 3)
CHIPCOMM_SHIM_LOG(chipcomm_shim_log_debug, 4)

}  // extern "C"
