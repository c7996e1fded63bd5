//! The schema of a configuration: keys with type, default, range and meaning.

use std::ops::RangeInclusive;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::{Setting, Size};

/// The placeholder in a key for a name chosen by the user: `vm.NAME.memory`.
pub(crate) const NAME: &str = "NAME";

/// One key of a configuration.
pub struct Key<T: 'static> {
    /// With its section: `shm.socket`.
    pub name: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// The documentation of its section.
    pub(crate) about: &'static str,
    pub(crate) check: fn(&T) -> Result<(), String>,
}

impl<T: Configuration> Key<T> {
    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        T::PREFIX.to_owned() + &self.name.replace('.', "_").to_ascii_uppercase()
    }

    /// Its section; empty at the top level.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.name
            .rsplit_once('.')
            .map_or("", |(section, _)| section)
    }

    /// Whether the user chooses the name of its section.
    pub(crate) fn is_named(&self) -> bool {
        self.name.split('.').any(|part| part == NAME)
    }

    /// Whether `path` is the key's path or that of an enclosing section.
    pub(crate) fn begins_with(&self, path: &[&str]) -> bool {
        let mut parts = self.name.split('.');
        path.iter().all(|word| {
            parts
                .next()
                .is_some_and(|part| part == *word || part == NAME)
        })
    }

    /// Whether `path` is the key's path.
    pub(crate) fn is_at(&self, path: &[&str]) -> bool {
        path.len() == self.name.split('.').count() && self.begins_with(path)
    }
}

/// A declared configuration.
pub trait Declared: Default + Clone + Serialize + DeserializeOwned + 'static {
    /// All keys: the top level, then each section.
    fn keys() -> &'static [Key<Self>];

    /// All keys at their defaults, including those with a `NAME`.
    fn sample() -> Self;
}

/// A configuration that is loaded as a whole.
pub trait Configuration: Declared {
    /// The side that it configures: guest or host.
    const SIDE: &'static str;
    /// Its default file.
    const FILE: &'static str;
    /// The default directory of its fragments.
    const FRAGMENTS: &'static str;
    /// The prefix of its environment variables.
    const PREFIX: &'static str;
    /// Prefixes of variables that start with [`PREFIX`](Self::PREFIX) but belong to others.
    const FOREIGN_PREFIXES: &'static [&'static str];
    /// The other side's configuration, for errors about keys in the wrong file.
    type Other: Configuration;

    /// Checks constraints between keys.
    ///
    /// # Errors
    /// The key at fault, and the rest of the sentence.
    fn check(&self) -> Result<(), (String, String)>;
}

/// Serializes a configuration or a part of it to TOML.
pub(crate) fn table(values: &impl Serialize) -> Table {
    Table::try_from(values).unwrap_or_default()
}

/// The value at a path.
pub(crate) fn find<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let first = table.get(*first)?;
    rest.iter().try_fold(first, |value, part| value.get(part))
}

/// Refuses values that serde accepts: a number out of range, a relative path.
pub(crate) fn check(value: &impl Setting, range: &[RangeInclusive<u64>]) -> Result<(), String> {
    value.check()?;
    let outside = |number| range.iter().find(|range| !range.contains(&number));
    match value.number().and_then(outside) {
        Some(range) => Err(format!(
            "expects a value from {} to {}, not {}",
            Size(*range.start()),
            Size(*range.end()),
            Value::try_from(value).map_err(|error| error.to_string())?
        )),
        None => Ok(()),
    }
}

/// Declares a configuration: a struct, its sections, and their keys as
/// `key: type = default => range;`. Of a section `[vm.NAME]` there are as many
/// as the user names.
macro_rules! configuration {
    (
        $(#[$meta:meta])*
        pub struct $all:ident {
            $( $(#[doc = $doc:literal])* $key:ident : $type:ty = $default:expr $(=> $range:expr)? ; )*
        }
        $(
            $(#[doc = $about:literal])*
            [$section:ident] pub struct $one:ident {
                $( $(#[doc = $doc1:literal])* $key1:ident : $type1:ty = $default1:expr $(=> $range1:expr)? ; )*
            }
        )*
        $( named:
            $(#[doc = $about2:literal])*
            [$section2:ident . NAME] pub struct $one2:ident {
                $( $(#[doc = $doc2:literal])* $key2:ident : $type2:ty = $default2:expr $(=> $range2:expr)? ; )*
            }
        )*
    ) => {
        $crate::schema::section! {
            $(#[$meta])* $all {
                $( $(#[doc = $doc])* $key: $type = $default, )*
                $( $(#[doc = $about])* $section: $one = $one::default(), )*
                $( $(#[doc = $about2])* $section2: std::collections::BTreeMap<String, $one2> =
                    std::collections::BTreeMap::new(), )*
            }
        }
        $( $crate::schema::section! {
            $(#[doc = $about])* $one { $( $(#[doc = $doc1])* $key1: $type1 = $default1, )* }
        } )*
        $( $crate::schema::section! {
            $(#[doc = $about2])* $one2 { $( $(#[doc = $doc2])* $key2: $type2 = $default2, )* }
        } )*
        $( impl $one { const ABOUT: &str = concat!($($about, "\n"),*); } )*
        $( impl $one2 { const ABOUT: &str = concat!($($about2, "\n"),*); } )*

        impl $crate::Declared for $all {
            fn keys() -> &'static [$crate::Key<Self>] {
                &[
                    $( $crate::Key {
                        name: stringify!($key),
                        doc: concat!($($doc, "\n"),*),
                        about: "",
                        check: |all| $crate::schema::check(&all.$key, &[$($range)?]),
                    }, )*
                    $( $( $crate::Key {
                        name: concat!(stringify!($section), ".", stringify!($key1)),
                        doc: concat!($($doc1, "\n"),*),
                        about: $one::ABOUT,
                        check: |all| $crate::schema::check(&all.$section.$key1, &[$($range1)?]),
                    }, )* )*
                    $( $( $crate::Key {
                        name: concat!(stringify!($section2), ".NAME.", stringify!($key2)),
                        doc: concat!($($doc2, "\n"),*),
                        about: $one2::ABOUT,
                        check: |all| all.$section2.values()
                            .try_for_each(|one| $crate::schema::check(&one.$key2, &[$($range2)?])),
                    }, )* )*
                ]
            }

            fn sample() -> Self {
                Self {
                    $( $section2: [($crate::schema::NAME.to_owned(), $one2::default())].into(), )*
                    ..Self::default()
                }
            }
        }
    };
}
pub(crate) use configuration;

macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $( $(#[doc = $doc:literal])* $field:ident : $type:ty = $default:expr, )* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $( $(#[doc = $doc])* pub $field: $type, )* }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }
    };
}
pub(crate) use section;
