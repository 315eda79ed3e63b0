// SPDX-License-Identifier: MIT
int one(int value);

int one(int value)
{
	return value + 1; /* MARK one */
}
