// SPDX-License-Identifier: MIT
int two(int value);

int two(int value)
{
	return value + 2; /* MARK two */
}
