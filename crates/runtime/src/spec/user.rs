//! Who the container runs as: numbers and names, looked up in the image's own passwd and group files.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use cri::v1::{LinuxContainerSecurityContext, SupplementalGroupsPolicy};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::SpecError;
use crate::images::ProcessConfig;

/// Larger user files are not user files.
const MAX_FILE_BYTES: u64 = 4 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

pub(super) fn resolve(
    security: &LinuxContainerSecurityContext,
    image: &ProcessConfig,
    layers: &[PathBuf],
) -> Result<User, SpecError> {
    let passwd =
        read_in_layers(layers, "etc/passwd").map_err(|source| SpecError::Image { file: "/etc/passwd", source })?;
    let group =
        read_in_layers(layers, "etc/group").map_err(|source| SpecError::Image { file: "/etc/group", source })?;
    let asked = match (&security.run_as_user, security.run_as_username.as_str()) {
        (Some(uid), _) => uid.value.to_string(),
        (None, "") => image.user.clone().unwrap_or_default(),
        (None, name) => name.to_owned(),
    };
    let merge = security.supplemental_groups_policy() == SupplementalGroupsPolicy::Merge;
    let mut user = lookup(&asked, &passwd, &group, merge)?;
    if let Some(gid) = &security.run_as_group {
        user.gid = narrow(gid.value)?;
    }
    for extra in &security.supplemental_groups {
        user.groups.push(narrow(*extra)?);
    }
    user.groups.push(user.gid);
    user.groups.sort_unstable();
    user.groups.dedup();
    Ok(user)
}

/// A user or group as an image or the kubelet names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Principal<'a> {
    Id(u32),
    Name(&'a str),
    /// A number that is no id: negative, or larger than upstream and other runtimes accept. It is never looked up as a name, as a
    /// passwd file could give it the id 0.
    OutOfRange,
}

impl<'a> Principal<'a> {
    /// The one parser of ids in this runtime: a sign and digits make a number, anything else a name. Nothing is the id 0.
    pub(crate) fn parse(text: &'a str) -> Self {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        if text.is_empty() {
            return Self::Id(0);
        }
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::Name(text);
        }
        match text.parse::<i32>().map(u32::try_from) {
            Ok(Ok(id)) => Self::Id(id),
            _ => Self::OutOfRange,
        }
    }
}

fn out_of_range(id: &str) -> SpecError {
    SpecError::Invalid(format!("id {id} is out of range: ids are 0 to {}", i32::MAX))
}

/// `user`, `uid`, `user:group` or `uid:gid`; nothing is root.
fn lookup(asked: &str, passwd: &str, group: &str, merge: bool) -> Result<User, SpecError> {
    let (name, group_name) = asked.split_once(':').map_or((asked, None), |(user, group)| (user, Some(group)));
    let entries = || passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let number = |entry: &[&str], field: usize| match entry.get(field).map(|text| Principal::parse(text)) {
        Some(Principal::Id(id)) if entry.get(field) != Some(&"") => Some(id),
        _ => None,
    };
    let user = Principal::parse(name);
    let entry = entries().find(|entry| match user {
        Principal::Id(uid) => number(entry, 2) == Some(uid),
        Principal::Name(name) => entry.first() == Some(&name),
        Principal::OutOfRange => false,
    });
    let uid = match (user, &entry) {
        (Principal::OutOfRange, _) => return Err(out_of_range(name)),
        (Principal::Id(uid), _) => uid,
        (Principal::Name(_), Some(entry)) => {
            number(entry, 2).ok_or_else(|| SpecError::Invalid(format!("user {name:?} has no valid id")))?
        }
        (Principal::Name(_), None) => {
            return Err(SpecError::Invalid(format!("unable to find user {name}: no matching entries in passwd file")));
        }
    };
    let mut gid = entry.as_ref().and_then(|entry| number(entry, 3)).unwrap_or(0);
    let group_entries = || group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    if let Some(wanted) = group_name.filter(|g| !g.is_empty()) {
        gid = match Principal::parse(wanted) {
            Principal::Id(gid) => gid,
            Principal::OutOfRange => return Err(out_of_range(wanted)),
            Principal::Name(name) => {
                let found = group_entries().find(|entry| entry.first() == Some(&name));
                found.and_then(|entry| number(&entry, 2)).ok_or_else(|| {
                    SpecError::Invalid(format!("unable to find group {wanted}: no matching entries in group file"))
                })?
            }
        };
    }
    let mut groups = Vec::new();
    if let (true, Some(member)) = (merge, entry.as_ref().and_then(|entry| entry.first().copied())) {
        let lists = |entry: &Vec<&str>| entry.get(3).is_some_and(|list| list.split(',').any(|name| name == member));
        groups.extend(group_entries().filter(lists).filter_map(|entry| number(&entry, 2)));
    }
    Ok(User { uid, gid, groups })
}

fn narrow(id: i64) -> Result<u32, SpecError> {
    i32::try_from(id).ok().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| out_of_range(&id.to_string()))
}

/// A file of the image, without mounting it: the topmost layer that has the path decides. Empty if there is none.
fn read_in_layers(layers: &[PathBuf], path: &str) -> io::Result<String> {
    for layer in layers {
        let root = File::open(layer)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match openat2(&root, Path::new(path), flags, Mode::empty(), ResolveFlags::IN_ROOT) {
            Ok(found) => return read_regular(found),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::NXIO) => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(String::new())
}

fn read_regular(found: OwnedFd) -> io::Result<String> {
    let file = File::from(found);
    if file.metadata()?.file_type().is_char_device() {
        // Overlayfs' whiteout: the file was removed here.
        return Ok(String::new());
    }
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nweb:x:33:34:::\n";
    const GROUP: &str = "root:x:0:\nwww:x:34:\nssl:x:50:web,other\n";

    #[test]
    fn users_are_found_by_number_and_by_name() {
        check("", "0:0 []");
        check("0", "0:0 []");
        check("web", "33:34 [50]");
        check("33", "33:34 [50]");
        check("1000", "1000:0 []");
        check("1000:1000", "1000:1000 []");
        check("web:ssl", "33:50 [50]");
        check("nobody", "unable to find user nobody: no matching entries in passwd file");
        check("0001000:+5", "1000:5 []");
        check("2147483647:2147483647", "2147483647:2147483647 []");
        check("web:nope", "unable to find group nope: no matching entries in group file");
    }

    /// A passwd file of the image gives each spelling the id 0.
    #[test]
    fn numbers_out_of_range_are_refused_and_not_looked_up_as_names() {
        for id in [
            "4294967296",
            "2147483648",
            "-1",
            "-0000001",
            "+4294967296",
            "99999999999999999999",
            "18446744073709551616",
        ] {
            let (passwd, group) = (format!("{id}:x:0:0:::\n"), format!("{id}:x:0:\n"));
            let want = format!("id {id} is out of range: ids are 0 to 2147483647");
            for asked in [id.to_owned(), format!("1:{id}"), format!("{id}:1")] {
                let got = lookup(&asked, &passwd, &group, true).err().map(|error| error.to_string());
                assert_eq!(got.as_deref(), Some(want.as_str()), "{asked}");
            }
        }
        for zero in ["", "0", "+0", "-0", "00000", "+000:1"] {
            assert_eq!(lookup(zero, "", "", true).map(|user| user.uid).ok(), Some(0), "{zero}");
        }
        let overflowing = lookup("web", "web:x:4294967296:0:::\n", "", true).err().map(|error| error.to_string());
        assert_eq!(overflowing.as_deref(), Some("user \"web\" has no valid id"));
    }

    #[track_caller]
    fn check(asked: &str, want: &str) {
        let got = match lookup(asked, PASSWD, GROUP, true) {
            Ok(user) => format!("{}:{} {:?}", user.uid, user.gid, user.groups),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want, "{asked}");
    }
}
