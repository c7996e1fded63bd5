//! The committed example files are what the declarations say.

use paragpu_config::guest::Guest;
use paragpu_config::host::Host;
use paragpu_config::{Configuration, Origin, Sources, example};

/// Removes the `#` before `key = value` lines; prose has a space after it.
fn uncommented(text: &str) -> String {
    text.lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => rest,
            _ => line,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn check<T: Configuration + PartialEq + std::fmt::Debug>(committed: &str) {
    assert_eq!(
        committed,
        example::<T>(),
        "write the example anew: `paragpu config example`"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("all.toml");

    std::fs::write(&file, committed).unwrap();
    let untouched = Sources::only(&file).load::<T>().unwrap();
    assert!(
        untouched
            .entries()
            .iter()
            .all(|entry| *entry.origin == Origin::Default)
    );

    std::fs::write(&file, uncommented(committed)).unwrap();
    let all = Sources::only(&file).load::<T>().unwrap();
    assert_eq!(all.values, T::default());
    for entry in all.entries() {
        assert!(
            matches!(entry.origin, Origin::File { .. }),
            "{} is missing in the example",
            entry.key
        );
    }
}

#[test]
fn guest_example_has_every_key() {
    check::<Guest>(include_str!("../guest.toml.example"));
}

#[test]
fn host_example_has_every_key() {
    check::<Host>(include_str!("../host.toml.example"));
}
