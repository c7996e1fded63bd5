//! Checks of the TLS files.

use std::path::PathBuf;

use crate::configuration::Conflict;

/// Checks that either all files are set or none.
pub(crate) fn check(files: &[(&str, &PathBuf)]) -> Result<(), Conflict> {
    let named = |(_, file): &&(&str, &PathBuf)| !file.as_os_str().is_empty();
    let missing = files.iter().find(|file| !named(file));
    match (files.iter().find(named), missing) {
        (Some((given, _)), Some((key, _))) => Err(Conflict::new(
            (*key).to_owned(),
            format!(
                "is empty, and {given} is not: TLS needs the authority, the certificate and its \
                 key, which `paragpu certificate` makes; for no TLS name none of them"
            ),
        )
        .required_by(given)),
        _ => Ok(()),
    }
}
