/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Compiled in front of the driver's sources for one test alone: the platform
 * answers as in a guest whose memory is encrypted. No such processor is
 * emulated; what the driver does then is its own code.
 */
#include <linux/cc_platform.h>

#define cc_platform_has(attribute) ((attribute) == CC_ATTR_GUEST_MEM_ENCRYPT)
