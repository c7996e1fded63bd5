//! Subordinate users: the ranges that /etc/subuid and /etc/subgid grant, to this process's
//! user and to users who connect.
//!
//! A user becomes any subordinate one in a user namespace. So limits by user count all of
//! them as one.
#![forbid(unsafe_code)]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use parking_lot::Mutex;
use rustix::process::geteuid;

const RANGES: &str = "/etc/subuid";
const ACCOUNTS: &str = "/etc/passwd";

/// The owners of ranges, as of when the files were read.
static OWNERS: Mutex<Owners> = Mutex::new(Owners {
    stamp: None,
    ranges: Vec::new(),
});

/// What identifies the contents of a file: device, inode, size, and the seconds and
/// nanoseconds of its last change.
type Stamp = (u64, u64, u64, i64, i64);

#[derive(Debug)]
struct Owners {
    stamp: Option<[Option<Stamp>; 2]>,
    ranges: Vec<Owned>,
}

/// A range of users, and the user who stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owned {
    first: u32,
    last: u32,
    owner: u32,
}

/// The user to whose limits a user counts: the owner of the range of /etc/subuid that
/// contains it, or itself. The first user of the range stands for an owner without a line in
/// /etc/passwd, and for root, whose range is that of containers.
#[must_use]
pub fn owner(user: u32) -> u32 {
    let stamp = [stamp(RANGES), stamp(ACCOUNTS)];
    let mut owners = OWNERS.lock();
    if owners.stamp != Some(stamp) {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        owners.ranges = owned(&read(RANGES), &read(ACCOUNTS)).collect();
        owners.stamp = Some(stamp);
    }
    owner_among(&owners.ranges, user)
}

fn owner_among(ranges: &[Owned], user: u32) -> u32 {
    let mut ranges = ranges.iter();
    let range = ranges.find(|range| (range.first..=range.last).contains(&user));
    range.map_or(user, |range| range.owner)
}

fn stamp(path: impl AsRef<Path>) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    let changed = (file.ctime(), file.ctime_nsec());
    Some((file.dev(), file.ino(), file.size(), changed.0, changed.1))
}

/// All ranges of a text like /etc/subuid, with their owners.
fn owned(ranges: &str, accounts: &str) -> impl Iterator<Item = Owned> {
    let numbers: std::collections::BTreeMap<&str, u32> = accounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?, fields.nth(1)?.parse().ok()?))
        })
        .collect();
    ranges.lines().filter_map(move |line| {
        let (owner, first, last) = range_of(line)?;
        let number = numbers.get(owner).copied().or_else(|| owner.parse().ok());
        let owner = number.filter(|number| *number != 0).unwrap_or(first);
        Some(Owned { first, last, owner })
    })
}

/// Returns the first and last user of the first range that both files grant to this user.
///
/// # Errors
/// One sentence: a file cannot be read, or there is no such range.
pub fn range() -> Result<(u32, u32), String> {
    let read = |path: &str| {
        std::fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"))
    };
    let number = geteuid().as_raw();
    let accounts = read("/etc/passwd").unwrap_or_default();
    let name = name(&accounts, number).unwrap_or_default();
    common(&read("/etc/subuid")?, &read("/etc/subgid")?, name, number).ok_or_else(|| {
        format!(
            "/etc/subuid and /etc/subgid have no range in common for user {number} ({name}), \
             which confine.users = \"subordinate\" needs: add one with usermod(8), --add-subuids \
             and --add-subgids"
        )
    })
}

/// Finds the name of a user in the text of /etc/passwd.
fn name(accounts: &str, number: u32) -> Option<&str> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then_some(name)
    })
}

/// Finds the first range of at least two users that both texts grant to a user, by name or
/// number.
fn common(users: &str, groups: &str, name: &str, number: u32) -> Option<(u32, u32)> {
    let groups: Vec<_> = ranges(groups, name, number).collect();
    ranges(users, name, number).find(|range| groups.contains(range))
}

fn ranges(text: &str, name: &str, number: u32) -> impl Iterator<Item = (u32, u32)> {
    text.lines().filter_map(move |line| {
        let (owner, first, last) = range_of(line)?;
        let is_own = owner == name || owner.parse() == Ok(number);
        (is_own && first < last && last < u32::MAX - 1).then_some((first, last))
    })
}

/// The owner, first and last user of a line.
fn range_of(line: &str) -> Option<(&str, u32, u32)> {
    let mut fields = line.split(':');
    let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
    let (first, count): (u32, u32) = (first.parse().ok()?, count.trim().parse().ok()?);
    let last = first.checked_add(count.checked_sub(1)?)?;
    // User 0 is subordinate to nobody, and the last two numbers are not valid users.
    (!owner.is_empty() && first >= 1).then_some((owner, first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNTS: &str = "root:x:0:0::/root:/bin/sh\nparagpu:x:997:996::/:/bin/false\nbroken\n";

    #[test]
    fn a_user_has_a_name() {
        assert_eq!(name(ACCOUNTS, 997), Some("paragpu"));
        assert_eq!(name(ACCOUNTS, 996), None);
    }

    #[test]
    fn a_range_is_of_both_lists() {
        let of = |users, groups| common(users, groups, "paragpu", 997);
        let (own, other) = ("paragpu:165536:1024\n", "somebody:165536:1024\n");
        assert_eq!(of(own, own), Some((165_536, 166_559)));
        assert_eq!(of("997:165536:1024", own), Some((165_536, 166_559)));
        assert_eq!(of(own, other), None);
        assert_eq!(of(own, "paragpu:165536:1023\n"), None);
        let two = "paragpu:200000:10\nparagpu:165536:1024\n";
        assert_eq!(of(two, own), Some((165_536, 166_559)));
    }

    #[test]
    fn a_subordinate_user_counts_as_its_owner() {
        let ranges = "paragpu:165536:1024\n1000:300000:65536\n1000:900000:1\nx\n\
                      ldap:400000:10\nldap:500000:10\nroot:600000:65536\n:700000:9\n";
        let ranges: Vec<Owned> = owned(ranges, ACCOUNTS).collect();
        for (user, counts_as) in [
            (0, 0),
            (997, 997),
            (1000, 1000),
            (165_535, 165_535),
            (165_536, 997),
            (166_559, 997),
            (166_560, 166_560),
            (300_000, 1000),
            (365_535, 1000),
            (900_000, 1000),
            (900_001, 900_001),
            // The name has no number here.
            (400_009, 400_000),
            (500_009, 500_000),
            (600_009, 600_000),
            (700_000, 700_000),
        ] {
            assert_eq!(owner_among(&ranges, user), counts_as, "{user}");
        }
    }

    #[test]
    fn root_is_subordinate_to_nobody() {
        assert_eq!(owner(0), 0);
        let ranges: Vec<Owned> = owned("a:0:100\nb:1:0\n", "").collect();
        assert_eq!(ranges, []);
    }

    #[test]
    fn invalid_ranges_are_ignored() {
        for line in [
            "",
            "paragpu",
            "paragpu:1",
            "paragpu:x:2",
            "paragpu:0:9",
            "paragpu:9:0",
            "paragpu:9:1",
            "paragpu:4294967290:9",
            "paragpu:4294967290:5",
            ":9:9",
        ] {
            assert_eq!(common(line, line, "paragpu", 997), None, "{line:?}");
        }
        assert_eq!(common(":9:9", ":9:9", "", 997), None);
    }
}
