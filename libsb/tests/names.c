// SPDX-License-Identifier: MIT
/* Functions with names as compilers of C++ and Rust generate them. */
#define FUNCTION(c_name, name)                                          \
	unsigned long c_name(unsigned long n) __asm__(name);            \
	__attribute__((noinline)) unsigned long c_name(unsigned long n) \
	{                                                               \
		__asm__ volatile("");                                   \
		return n + __LINE__;                                    \
	}

FUNCTION(method_int, "_ZN2ns5Class6methodEi")
FUNCTION(method_double, "_ZNK2ns5Class6methodEd")
FUNCTION(method_cold, "_ZN2ns5Class6methodEi.cold")
FUNCTION(method_thunk, "_ZThn8_N2ns5Class6methodEi")
FUNCTION(constructor, "_ZN2ns5ClassC1Ev")
FUNCTION(shift, "_ZN2nslsERSoi")
FUNCTION(call, "_ZN2ns5ClassclEv")
FUNCTION(convert, "_ZN2ns5ClasscvmEv")
FUNCTION(templated, "_Z9templatedIiET_S0_")
FUNCTION(anonymous, "_ZN12_GLOBAL__N_16hiddenEv")
FUNCTION(rust, "_ZN4core3fmt5write17h0123456789abcdefE")
FUNCTION(rust_impl,
	 "_ZN66_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..ops..drop..Drop$GT$4drop17h"
	 "0123456789abcdefE")
FUNCTION(rust_v0, "_RNvCs1234_7mycrate9calibrate")
FUNCTION(plain, "plain_name")
FUNCTION(plain_cold, "plain_name.cold")
FUNCTION(plain_part, "plain_name.part.0")
FUNCTION(plain_clone, "plain_name.constprop.0")
