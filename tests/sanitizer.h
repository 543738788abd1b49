// sanitizer.h - which sanitizer a file is compiled for. GCC defines macros, Clang has features.
#ifndef LM_TESTS_SANITIZER_H
#define LM_TESTS_SANITIZER_H
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define LM_ADDRESS_SANITIZER 1
#else
#define LM_ADDRESS_SANITIZER 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define LM_THREAD_SANITIZER 1
#else
#define LM_THREAD_SANITIZER 0
#endif
#endif
