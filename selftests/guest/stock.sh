# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2154 # cache and others are of those who source this
#
# Debian's own kernels: find the newest, and unpack it with the headers into a directory
# of the cache. Sourced after cache.sh and suite.sh.

# releases SUITE VERSION FLAVOUR: the releases that have headers, newest first. A VERSION
# that ends in + is the oldest that is accepted.
releases() {
	suite_apt "$1" apt-cache pkgnames linux-headers- |
		sed -n "s/^linux-headers-\([0-9].*-$3\)\$/\1/p" |
		awk -v wanted="$2" '
			{ split($0, part, /[^0-9]+/); major = part[1]; minor = part[2] }
			wanted ~ /[+]$/ {
				split(wanted, part, /[.+]/)
				if (major > part[1] + 0 || (major == part[1] && minor + 0 >= part[2] + 0))
					print
				next
			}
			major "." minor == wanted
		' | newest_first
}

# A release candidate is older than its release.
newest_first() {
	sed 's/-rc/~rc/' | sort -rV | sed 's/~rc/-rc/'
}

# newest SUITE VERSION FLAVOUR: the newest release that has an image too
newest() {
	local release
	releases "$@" | while read -r release; do
		if [[ -n $(image_packages "$1" "$release") ]]; then
			printf '%s\n' "$release"
			break
		fi
	done
}

# image_packages SUITE RELEASE: the packages of the image. Signed ones are published days
# after the others.
image_packages() {
	local choice
	for choice in "linux-image-$2" "linux-image-$2-unsigned" \
		"linux-binary-unsigned-$2 linux-modules-$2"; do
		# shellcheck disable=SC2086 # words
		if suite_apt "$1" apt-cache show $choice > /dev/null 2>&1; then
			printf '%s\n' $choice
			break
		fi
	done
}

# parts SUITE RELEASE: the packages that make up this kernel and its headers.
# The image is one package up to 6.12 and three after it.
parts() {
	local queue package
	local -A seen=()
	mapfile -t queue < <(image_packages "$1" "$2")
	queue+=("linux-headers-$2")
	while [[ ${#queue[@]} -gt 0 ]]; do
		package=${queue[0]}
		queue=("${queue[@]:1}")
		[[ -z ${seen[$package]:-} ]] || continue
		seen[$package]=1
		printf '%s\n' "$package"
		mapfile -t -O "${#queue[@]}" queue < <(
			suite_apt "$1" apt-cache show --no-all-versions "$package" |
				sed -n 's/^Depends: //p' | tr ',' '\n' |
				sed -nE 's/^ *(linux-(image|binary|modules|base|headers|kbuild)-[0-9][^ |]*).*/\1/p')
	done
}

# number FILE OFFSET TYPE SIZE: an unsigned little-endian number of a file
number() {
	od -An -t"$3" -j "$(($2))" -N "$4" "$1" | tr -d ' '
}

# decompress_kernel VMLINUZ OUT: write the ELF file in a bzImage. The header
# (Documentation/arch/x86/boot.rst) gives its place; four bytes of length follow every
# format but gzip.
decompress_kernel() {
	local sectors offset length magic how tail=4
	sectors=$(number "$1" 0x1f1 u1 1)
	offset=$((($(number "$1" 0x248 u4 4)) + (sectors + 1) * 512))
	length=$(number "$1" 0x24c u4 4)
	magic=$(od -An -tx1 -j "$offset" -N 4 "$1" | tr -d ' ')
	case $magic in
	fd377a58) how=(xz -dc) ;;
	28b52ffd) how=(zstd -dcq) ;;
	02214c18) how=(lz4 -dcq) ;;
	1f8b*) how=(gzip -dc) tail=0 ;;
	*) die "$1: unknown compression (magic $magic)" ;;
	esac
	dd if="$1" iflag=skip_bytes,count_bytes bs=1M status=none \
		skip="$offset" count="$((length - tail))" | "${how[@]}" > "$2"
}

# make_kernel SUITE RELEASE TEMP
make_kernel() {
	local suite=$1 release=$2 temp=$3 packages deb image
	mapfile -t packages < <(parts "$suite" "$release")
	suite_download "$suite" "$temp/debs" "${packages[@]}"
	say "unpacking $release"
	for deb in "$temp"/debs/*.deb; do
		dpkg-deb -x "$deb" "$temp"
	done
	mkdir -p "$temp/lib"
	if [[ -d $temp/usr/lib/modules ]]; then
		mv "$temp/usr/lib/modules" "$temp/lib/modules"
	fi
	for image in "$temp"/boot/vmlinuz-* "$temp"/lib/modules/*/vmlinuz*; do
		[[ -e $image ]] || continue
		case $release in
		*-arm64) cp "$image" "$temp/vmlinux" ;;
		*) decompress_kernel "$image" "$temp/vmlinux" ;;
		esac
	done
	[[ -s $temp/vmlinux ]] || die "$release: no kernel image in ${packages[*]}"
	drop_drivers "$temp/lib/modules/$release/kernel"
	find "$temp/lib/modules" -name '*.ko.xz' -print0 | xargs -0r -P "$(nproc)" -n 64 xz -d
	rm -f "$temp/lib/modules/$release"/{build,source}
	ln -s "../../../usr/src/linux-headers-$release" "$temp/lib/modules/$release/build"
	# The flavour's Makefile includes the common headers by an absolute path.
	sed -i "s|/usr/src/|$cache/kernels/$release/usr/src/|" \
		"$temp/usr/src/linux-headers-$release/Makefile"
	depmod -b "$temp" "$release"
	printf '%s\n' "$suite" > "$temp/suite"
	printf '%s\n' "$release" > "$temp/ver"
	rm -rf "${temp:?}"/{debs,boot,usr/share} "$temp"/usr/lib/linux-image-*
}

# drop_drivers DIR: remove drivers that no guest needs; they are most of a kernel that is
# not a cloud kernel
drop_drivers() {
	rm -rf "$1/sound"
	find "$1/drivers" -mindepth 1 -maxdepth 1 \
		! -name block ! -name char ! -name net ! -name virtio -exec rm -rf {} +
	find "$1/drivers/net" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
}
