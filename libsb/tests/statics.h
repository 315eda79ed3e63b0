/* SPDX-License-Identifier: MIT */
#ifndef STATICS_H
#define STATICS_H

unsigned long statics_first(unsigned long n);
unsigned long statics_second(unsigned long n);
unsigned long statics_third(unsigned long n);
unsigned long statics_count(void);

/* A static probe without arguments, as <sys/sdt.h> defines it. */
#define PROBE(provider, name, semaphore)                                      \
	__asm__ volatile("990: nop\n"                                         \
			 ".pushsection .note.stapsdt, \"\", \"note\"\n"       \
			 ".balign 4\n"                                        \
			 ".4byte 992f-991f, 994f-993f, 3\n"                   \
			 "991: .asciz \"stapsdt\"\n"                          \
			 "992: .balign 4\n"                                   \
			 "993: .8byte 990b\n"                                 \
			 ".8byte _.stapsdt.base\n"                            \
			 ".8byte " semaphore "\n"                             \
			 ".asciz \"" provider "\"\n"                          \
			 ".asciz \"" name "\"\n"                              \
			 ".asciz \"\"\n"                                      \
			 "994: .balign 4\n"                                   \
			 ".popsection\n"                                      \
			 ".ifndef _.stapsdt.base\n"                           \
			 ".pushsection .stapsdt.base, \"aG\", \"progbits\", " \
			 ".stapsdt.base, comdat\n"                            \
			 ".weak _.stapsdt.base\n"                             \
			 ".hidden _.stapsdt.base\n"                           \
			 "_.stapsdt.base: .space 1\n"                         \
			 ".size _.stapsdt.base, 1\n"                          \
			 ".popsection\n"                                      \
			 ".endif\n")

#endif
