# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2034,SC2154 # cache and others are of cache.sh; some are for the scripts that source this
#
# Systems for building and testing wheels: the libraries of Debian 11 (the sysroot),
# CPythons that run with its C library, and systems of Debian 11, 12 and 13 without a
# compiler. Each is made once and kept. For another architecture than the machine's,
# compilers are the machine's, and all else is run by qemu (emulate). Sourced after
# cache.sh, suite.sh, root.sh and systems.sh.

oldest=bullseye
declare -A no_source=()
# For mmdebstrap: Debian's security archive has no longer what its index of 11 names for arm64.
no_updates=(--setup-hook='find "$1/etc/apt" -name "*.list" -exec sed -i /-security/d {} +')

# triplet_of ARCH
triplet_of() {
	echo "$1-linux-gnu"
}

# debian_arch ARCH
debian_arch() {
	case $1 in
	x86_64) echo amd64 ;;
	aarch64) echo arm64 ;;
	esac
}

# is_foreign ARCH: whether it is not the machine's
is_foreign() {
	[[ $1 != "$(uname -m)" ]]
}

# suite_for SUITE ARCH: print the name of the suite that has packages of ARCH (suite_apt)
suite_for() {
	local suite=$1
	! is_foreign "$2" || suite+=-$(debian_arch "$2")
	echo "$suite"
}

# ------------------------------------------------------------------ to build with

# sysroot_of ARCH: set sysroot to the headers and libraries that a wheel is linked with.
# The machine's own compiler uses them, for either architecture: no program in it is run.
sysroot_of() {
	need_root "a sysroot of Debian 11"
	need_tool mmdebstrap
	cached "wheels/sysroot-$1" make_sysroot "$1"
	sysroot=$cache/wheels/sysroot-$1
}

make_sysroot() {
	local arch=$1 temp=$2 options=()
	[[ $arch != aarch64 ]] || options=("${no_updates[@]}")
	say "unpacking Debian 11's C library and headers for $arch (some minutes)"
	debootstrap "$oldest" "$temp" --variant=extract --architectures="$(debian_arch "$arch")" "${options[@]}" \
		--include=libc6-dev,libelf-dev,libdw-dev,liblzma-dev,libzstd-dev,zlib1g-dev,libffi-dev
	relative_links "$temp"
	kernel_headers "$arch" "$temp"
	mkdir -p "$temp/licences"
	make_libbpf "$arch" "$temp"
	copy_licences "$temp"
	# The compiler and pkg-config get the absolute path of each directory.
	find "$temp/usr" -name '*.pc' -exec \
		sed -i "s|^\([a-z_]*\)=/usr|\1=$cache/wheels/sysroot-$arch/usr|" {} +
}

# relative_links DIR: absolute links would lead the linker out of the sysroot
relative_links() {
	local link
	find "$1" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
		ln -sfnr "$1$(readlink "$link")" "$link"
	done
}

# kernel_headers ARCH SYSROOT: those of Linux 6.1, which have everything that libsb needs
# for BPF. The C library works with any version.
kernel_headers() {
	local suite
	suite=$(suite_for bookworm "$1")
	suite_update "$suite"
	suite_download "$suite" "$2/debs" "linux-libc-dev:$(debian_arch "$1")"
	dpkg-deb -x "$2"/debs/*.deb "$2"
	rm -r "$2/debs"
}

# source_in SUITE PACKAGE DIR: unpack its upstream source to DIR/source; set source to
# its name and version
source_in() {
	mkdir -p "$3/source"
	fetch_source "$1" "$2" "$3" >&2 || die "the source of $2 can't be had from the mirror"
	tar -xf "$3"/*.orig.tar.* -C "$3/source" --strip-components=1
	source=$(basename "$3"/*.orig.tar.* | sed 's/\.orig\.tar.*//; s/_/ /')
}

# compiler_of ARCH SYSROOT: set compiler to the words of the command. Without -B, the
# linker would search beside the compiler before it searches the sysroot; a cross compiler
# has another C library's headers there too.
compiler_of() {
	local triplet
	triplet=$(triplet_of "$1")
	compiler=(gcc "--sysroot=$2" "-B$2/usr/lib/$triplet/")
	! is_foreign "$1" ||
		compiler=("$triplet-${compiler[@]}" -isystem "$2/usr/include/$triplet" -isystem "$2/usr/include")
}

# not_compiled LOG: exit, after printing the end of the log
not_compiled() {
	tail -n 20 "$1" >&2
	die "a library was not compiled: see $1"
}

# Debian 11's libbpf is too old; that of 12 is linked statically, so that it can't clash
# with another one in a process.
make_libbpf() {
	local arch=$1 temp=$2 work=$2.libbpf source compiler
	compiler_of "$arch" "$temp"
	say "compiling libbpf for $arch"
	rm -rf "$work"
	source_in bookworm libbpf "$work"
	make -s -C "$work/source/src" BUILD_STATIC_ONLY=1 NO_PKG_CONFIG=1 CFLAGS='-O2 -g -fPIC' \
		CC="${compiler[*]}" DESTDIR="$temp" PREFIX=/usr \
		LIBDIR="/usr/lib/$(triplet_of "$arch")" install > "$work/log" 2>&1 ||
		not_compiled "$work/log"
	mkdir "$temp/licences/libbpf"
	cp "$work"/source/LICENSE* "$temp/licences/libbpf/"
	echo "libbpf: $source, as in Debian 12, unchanged" >> "$temp/licences/README"
	rm -rf "$work"
}

# pkg_config_path ARCH SYSROOT: print it
pkg_config_path() {
	echo "$2/usr/lib/$(triplet_of "$1")/pkgconfig:$2/usr/lib/pkgconfig:$2/usr/share/pkgconfig"
}

# machine_file ARCH SYSROOT PYTHON: print the settings for Meson, a cross file if the
# architecture is foreign
machine_file() {
	local prefix='' pkgconfig compiler
	compiler_of "$1" "$2"
	compiler=(ccache "${compiler[@]}")
	! is_foreign "$1" || prefix=$(triplet_of "$1")-
	pkgconfig="'$(pkg_config_path "$1" "$2" | sed "s/:/', '/g")'"
	cat <<-EOF
		[binaries]
		c = [$(printf "'%s'," "${compiler[@]}")]
		ar = '${prefix}ar'
		strip = '${prefix}strip'
		pkgconfig = '/usr/bin/pkg-config'
		pkg-config = '/usr/bin/pkg-config'
		python = '$3'
		[built-in options]
		pkg_config_path = [$pkgconfig]
		[properties]
		pkg_config_libdir = [$pkgconfig]
		needs_exe_wrapper = $(is_foreign "$1" && echo true || echo false)
		[host_machine]
		system = 'linux'
		cpu_family = '$1'
		cpu = '$1'
		endian = 'little'
	EOF
}

# copy_licences SYSROOT: those of Debian's packages whose libraries are in wheels
copy_licences() {
	local library package dir
	while read -r library package; do
		dir=$1/usr/share/doc/$package
		mkdir "$1/licences/$library"
		cp "$dir/copyright" "$1/licences/$library/"
		printf '%s: %s of Debian 11\n' "$library" \
			"$(zcat "$dir"/changelog.Debian*.gz | sed -n '1s/ *(\([^)]*\)).*/ \1/p')" \
			>> "$1/licences/README"
	done <<-EOF
		libelf libelf1
		libdw libdw1
		liblzma liblzma5
		libbz2 libbz2-1.0
	EOF
	# Files that those texts refer to
	for library in libelf libdw; do
		cp /usr/share/common-licenses/{LGPL-3,GPL-3,GPL-2} "$1/licences/$library/"
	done
	sort -o "$1/licences/README" "$1/licences/README"
	cat >> "$1/licences/README" <<-EOF

		These libraries are in this wheel: libbpf inside _core, the others as files that
		can be replaced. Their sources are Debian's source packages of these names and
		versions. Their licences are in the directories beside this file.
	EOF
}

# ------------------------------------------------------------------ interpreters

# find_python VERSION ARCH: set python to an interpreter that runs here (a foreign one with
# QEMU_LD_PREFIX), to build a wheel for; or set why to the reason that there is none
find_python() {
	python='' why=''
	machine_python "$@"
	[[ -n $python ]] || debian_python "$@"
}

# python_on SYSTEM VERSION ARCH: the same for one that runs on that system
python_on() {
	python='' why=''
	case $1-$2 in
	bookworm-3.11 | trixie-3.13) python=/usr/bin/python$2 ;;
	bullseye-*) debian_python "$2" "$3" ;;
	*)
		find_python "$2" "$3"
		# This machine may be newer than that system.
		if [[ -n $python ]] && ! in_root "$cache/wheels/system-$1-$3" "$python" -c '' 2> /dev/null; then
			python=''
			debian_python "$2" "$3"
		fi
		;;
	esac
}

# machine_python VERSION ARCH: the newest one on this machine. The headers of Debian's own
# are in more than one directory, and the sysroot hides the others.
machine_python() {
	local candidate version
	! is_foreign "$2" || return 0
	while read -r candidate; do
		version=$("$candidate" -IS -c 'import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)')
		[[ $version == "$1" && $candidate != /usr/* ]] || continue
		python=$candidate
	done < <("$repo/build-aux/pythons" -a)
	[[ -n $python && $python != "$cache"/* ]] || return 0
	version=$("$python" -IS -c 'import sys; print("%d.%d.%d" % sys.version_info[:3] + sys.abiflags)')
	cached "wheels/pythons/machine-$version" copy_python "$python"
	python=$cache/wheels/pythons/machine-$version/bin/python3
}

# copy_python PYTHON TEMP: to a directory that is visible in a system without it
copy_python() {
	local prefix=${1%/bin/*} program
	mkdir "$2"
	(cd "$prefix" && find bin include lib -name __pycache__ -prune -o -path 'lib/python*/test' -prune \
		-o -path 'lib/python*/site-packages' -prune -o -name '*.a' -prune -o ! -type d -print0 |
		xargs -0 cp -a --parents -t "$2")
	# Its own library may be shared, and linked by its previous path.
	program=$(readlink -f "$2/bin/python3")
	"$tools/bin/patchelf" --set-rpath "\$ORIGIN/../lib" "$program"
}

# debian_python VERSION ARCH: built from Debian's source, for Debian 11 and everything
# newer; or unstable's packages with unstable's C library, if the mirror has no source
debian_python() {
	case $1 in
	3.10 | 3.12)
		why="no release of Debian has the source of CPython $1, to compile it for Debian 11"
		return
		;;
	esac
	python=$cache/wheels/pythons/$1-$2/bin/python3
	# The mirror is queried once per run.
	if [[ -n ${no_source[$1-$2]:-} ]] || ! "$repo/build-aux/wheels" -p "$@"; then
		python='' no_source[$1-$2]=1
	fi
	[[ -z $python && $1 != 3.11 ]] || return 0
	if [[ $1 == *t ]]; then
		why="the mirror has no source of CPython $1 now, and Debian has no package of it"
		return
	fi
	cached "wheels/pythons/unstable-$1-$2" make_unstable_python "$1" "$2"
	python=$cache/wheels/pythons/unstable-$1-$2/usr/bin/python$1
}

# make_unstable_python VERSION ARCH TEMP
make_unstable_python() {
	local version=$1 temp=$3 suite dir=$cache/wheels/pythons/unstable-$1-$2 package loader triplet
	local packages=(python3-pip-whl)
	for package in "python$version-minimal" "libpython$version-minimal" "libpython$version-stdlib" \
		"libpython$version-dev" "python$version-venv" libc6 libexpat1 libffi8 zlib1g libzstd1; do
		packages+=("$package:$(debian_arch "$2")")
	done
	suite=$(suite_for sid "$2")
	suite_update "$suite"
	suite_download "$suite" "$temp/debs" "${packages[@]}"
	for package in "$temp"/debs/*.deb; do
		dpkg-deb -x "$package" "$temp"
	done
	rm -r "$temp/debs"
	# It finds its C library, its headers and pip by relative paths.
	triplet=$(triplet_of "$2")
	loader=$(cd "$temp" && echo "usr/lib/$triplet"/ld-linux-*.so.?)
	"$tools/bin/patchelf" --set-interpreter "$dir/$loader" --force-rpath \
		--set-rpath "$dir/usr/lib/$triplet" "$temp/usr/bin/python$version"
	cp "$temp/usr/include/$triplet/python$version/pyconfig.h" "$temp/usr/include/python$version/"
	sed -i "s|'/usr/share/python-wheels/'|'$dir/usr/share/python-wheels/'|" \
		"$temp/usr/lib/python$version"/_sysconfigdata*.py
}

# Built without optimisation, because nothing is measured with it. The libraries that it
# is linked with are copied too: other releases have libffi with another number.
make_debian_python() {
	local version=$1 arch=$2 temp=$3 work=$3.work prefix=$cache/wheels/pythons/$1-$2 options sysroot
	local compile=compile_python
	if is_foreign "$arch"; then
		sysroot_of "$arch"
		compile=cross_compile_python
	else
		cached "wheels/compiler-$arch" make_compiler_system "$arch"
	fi
	say "compiling Python $version for $arch and Debian 11 (some minutes; log in $prefix.log)"
	rm -rf "$work"
	unpack_source "$version" '' "$work"
	options=("--prefix=$prefix" --disable-test-modules --with-ensurepip=no OPT='-O1 -DNDEBUG'
		LDFLAGS="-Wl,-rpath,$prefix/lib")
	[[ $version != *t ]] || options+=(--disable-gil)
	"$compile" "$arch" "$work" "$prefix" "${options[@]}" > "$prefix.log" 2>&1 ||
		die "compiling Python $version for $arch failed: see $prefix.log"
	mv "$work/installed$prefix" "$temp"
	rm -rf "$work"
}

# compile_python ARCH WORK PREFIX OPTION...: WORK/source on Debian 11, to WORK/installed
compile_python() {
	local arch=$1 work=$2 prefix=$3
	shift 3
	# shellcheck disable=SC2016 # expanded by the inner shell
	in_root "$cache/wheels/compiler-$arch" /bin/sh -euc '
		cd "$1"
		prefix=$2
		shift 2
		./configure "$@"
		make -j 2
		make install DESTDIR="$PWD/../installed" COMPILEALL_OPTS="-j1 -l"
		cp -L /usr/lib/*-linux-gnu/libffi.so.7 "$PWD/../installed$prefix/lib/"
		PYTHONHOME=$PWD/../installed$prefix ./python -c "import ctypes, pyexpat, zlib"
	' sh "$work/source" "$prefix" "$@"
}

# cross_compile_python ARCH WORK PREFIX OPTION...: the same, by the machine's cross
# compiler. To its own build the interpreter is the machine's, because it runs here.
cross_compile_python() {
	local arch=$1 work=$2 prefix=$3 triplet compiler
	shift 3
	triplet=$(triplet_of "$arch")
	compiler_of "$arch" "$sysroot"
	# shellcheck disable=SC2016 # expanded by the inner shell
	env QEMU_LD_PREFIX="$sysroot" PKG_CONFIG_LIBDIR="$(pkg_config_path "$arch" "$sysroot")" \
		PKG_CONFIG_SYSTEM_INCLUDE_PATH="$sysroot/usr/include" \
		CC="${compiler[*]}" AR="$triplet-ar" READELF="$triplet-readelf" /bin/sh -euc '
		cd "$1"
		prefix=$2 triplet=$3
		shift 3
		./configure --build="$triplet" --host="$triplet" "$@"
		make -j 2
		make install DESTDIR="$PWD/../installed" COMPILEALL_OPTS="-j1 -l"
		cp -L "$QEMU_LD_PREFIX/usr/lib/$triplet/libffi.so.7" "$PWD/../installed$prefix/lib/"
		PYTHONHOME=$PWD/../installed$prefix ./python -c "import ctypes, pyexpat, zlib"
	' sh "$work/source" "$prefix" "$triplet" "$@"
}

make_compiler_system() {
	say "making a system of Debian 11 with a compiler (a minute or two)"
	system_of "$oldest" "$2" --variant=apt --architectures="$(debian_arch "$1")" \
		--include=gcc,libc6-dev,make,pkg-config,libffi-dev,zlib1g-dev
}

# ------------------------------------------------------------------ to try wheels in

# choose_wheel_systems [NAME...]: set chosen
choose_wheel_systems() {
	local name
	chosen=()
	for name; do
		case $name in
		11 | bullseye) chosen+=(bullseye) ;;
		12 | bookworm) chosen+=(bookworm) ;;
		13 | trixie) chosen+=(trixie) ;;
		*) usage_error "'$name' is not a system to try wheels on: 11, 12 or 13" ;;
		esac
	done
	[[ ${#chosen[@]} -gt 0 ]] || chosen=(bullseye bookworm trixie)
}

# wheel_system SUITE ARCH: make a small system, with its own Python if there is a wheel
# for that
wheel_system() {
	need_root "a chroot of $1"
	need_tool mmdebstrap
	cached "wheels/system-$1-$2" make_wheel_system "$1" "$2"
}

make_wheel_system() {
	local options=()
	[[ $1 == "$oldest" ]] || options=('--include=python3,python3-venv')
	# mmdebstrap asks arch-test, and for the name that Debian gives its emulator.
	! is_foreign "$2" || options+=(--skip=check/qemu)
	[[ $1-$2 != "$oldest-aarch64" ]] || options+=("${no_updates[@]}")
	say "making a system of $1 without a compiler for $2 (some minutes)"
	system_of "$1" "$3" --variant=apt --architectures="$(debian_arch "$2")" "${options[@]}"
}
