# shellcheck shell=bash
# An apt of a script's own: lists, archives and sources in its work folder, proxies and keys the system's. Nothing of
# this system changes, and no root is needed. Sourced, not run.

# start_private_apt FOLDER
start_private_apt() {
  apt_folder=$1
  mkdir -p "$apt_folder"/{lists,archives,parts}
}

# own_archives: the archives of this Debian that apt knows, as lines of a sources.list, without its updates.
own_archives() {
  local codename
  codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
    { grep -F -- " $codename " || true; } | sort -u
}

# private_apt COMMAND ARGUMENTS…, with the sources in $apt_folder/sources.list.
private_apt() {
  local command=$1
  shift
  "$command" --quiet=2 \
    -o "Dir::State::lists=$apt_folder/lists" -o "Dir::Cache::archives=$apt_folder/archives" \
    -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=" \
    -o "Dir::Etc::sourcelist=$apt_folder/sources.list" -o "Dir::Etc::sourceparts=$apt_folder/parts" \
    -o 'Acquire::Languages=none' -o 'APT::Sandbox::User=root' "$@"
}
