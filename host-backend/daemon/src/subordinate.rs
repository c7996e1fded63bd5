//! Reads the ranges that /etc/subuid and /etc/subgid grant to this process's user.
#![forbid(unsafe_code)]

use rustix::process::geteuid;

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
        let mut fields = line.split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        if owner.is_empty() || (owner != name && owner.parse() != Ok(number)) {
            return None;
        }
        let (first, count): (u32, u32) = (first.parse().ok()?, count.trim().parse().ok()?);
        let last = first.checked_add(count.checked_sub(1)?)?;
        // The last two numbers are not valid users.
        (first >= 1 && first < last && last < u32::MAX - 1).then_some((first, last))
    })
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
