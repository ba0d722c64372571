// How the kernels use Highway: which instruction sets they are compiled for. Included first by sources that are
// compiled once a set (through foreach_target.h), and by instruction_sets.cpp.
//
// x86: AVX-512 with and without VBMI2 (compress of narrow lanes), AVX2, and plain C++ for what lacks both; ARM: NEON.
// SSSE3 and SSE4 would only serve processors of before 2013, and vectors of unknown length do not divide mask words.
#pragma once

#define HWY_WANT_AVX3_DL 1
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
