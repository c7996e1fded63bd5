//! The names of VMs.

use std::fmt;
use std::str::FromStr;

use paragpu_protocol::is_vm_name;

use crate::Error;

/// The name of a VM for the daemon, the device process and its unit. It is part of the
/// socket's path and of the unit's name, unchanged in both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmName(String);

impl VmName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VmName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        // A unit's instance name may begin with any character, but an argument of a command
        // must not begin with a dash.
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins && is_vm_name(text, good) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::VmName(text.to_owned()))
        }
    }
}

impl fmt::Display for VmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_paths_and_units() {
        for name in ["a", "debian-12", "web_1.example", "0"] {
            assert_eq!(name.parse::<VmName>().unwrap().as_str(), name);
        }
        let long = "x".repeat(65);
        for name in [
            "", ".", "..", "-x", "a b", "a/b", "a@b", "ä", "a\n", "10.0.0.2", &long,
        ] {
            let said = name.parse::<VmName>().unwrap_err().to_string();
            assert!(said.contains("--vm"), "{said}");
        }
    }
}
