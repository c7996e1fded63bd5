//! What a configuration is: keys with type, default, range and meaning.

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::{Setting, Size};

/// One key of a configuration.
pub struct Key<T: 'static> {
    /// With its section: `shm.socket`.
    pub name: &'static str,
    /// What it means.
    pub doc: &'static str,
    pub(crate) check: fn(&T) -> Result<(), String>,
}

impl<T: Configuration> Key<T> {
    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        T::PREFIX.to_owned() + &self.name.replace('.', "_").to_ascii_uppercase()
    }

    /// The section it lies in; empty at the top.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }
}

/// Sections of which there are as many as somebody names: `[vm.NAME]`.
pub struct Tables<T: 'static> {
    /// `vm`.
    pub section: &'static str,
    /// What one of them is for.
    pub doc: &'static str,
    /// Name and meaning of each key of one.
    pub keys: &'static [(&'static str, &'static str)],
    /// All keys of one at their defaults.
    pub(crate) defaults: fn() -> Table,
    /// Checks a key of each of them that is there.
    pub(crate) check: fn(&T, &str) -> Result<(), String>,
}

/// A set of keys that is read as a whole.
pub trait Configuration: Default + Clone + Serialize + DeserializeOwned + 'static {
    /// Its file at the default place.
    const FILE: &'static str;
    /// The directory of its fragments.
    const FRAGMENTS: &'static str;
    /// What its environment variables start with.
    const PREFIX: &'static str;
    /// Prefixes of variables that start with [`PREFIX`](Self::PREFIX) but belong to others.
    const FOREIGN: &'static [&'static str];

    /// Every key, top level first, then section by section.
    fn keys() -> &'static [Key<Self>];

    /// The sections that the user names.
    fn tables() -> &'static [Tables<Self>] {
        &[]
    }

    /// The file to which a key belongs that is not one of this configuration.
    fn elsewhere(key: &str) -> Option<&'static str>;

    /// Checks what concerns several keys.
    ///
    /// # Errors
    /// The key to blame, and the rest of the sentence.
    fn check(&self) -> Result<(), (String, String)> {
        Ok(())
    }
}

/// A configuration or a part of it as TOML.
pub(crate) fn table(values: &impl Serialize) -> Table {
    Table::try_from(values).unwrap_or_default()
}

/// The value of a key: `shm.socket`.
pub(crate) fn find<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        None => table.get(key),
        Some((section, key)) => table.get(section)?.get(key),
    }
}

/// The candidate most like `word`, if one is like it at all.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (likeness(word, candidate), candidate))
        .filter(|(score, _)| *score > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// 1 for equal words, less the more they differ. A key written without its
/// section, or in another, is like the key with it.
fn likeness(word: &str, candidate: &str) -> f64 {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let whole = strsim::normalized_damerau_levenshtein(word, candidate);
    let tail = strsim::normalized_damerau_levenshtein(&last(word), &last(candidate));
    whole.max(tail * 0.9)
}

/// Refuses what serde accepts: a number outside of the range, a relative path.
pub(crate) fn check(
    value: &impl Setting,
    range: Option<std::ops::RangeInclusive<u64>>,
) -> Result<(), String> {
    value.check()?;
    match (range, value.number()) {
        (Some(range), Some(number)) if !range.contains(&number) => Err(format!(
            "expects a value from {} to {}, not {}",
            Size(*range.start()),
            Size(*range.end()),
            Value::try_from(value).map_err(|error| error.to_string())?
        )),
        _ => Ok(()),
    }
}

/// Declares a configuration: a struct, its sections, and its keys.
macro_rules! configuration {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])* $field:ident : $type:ty = $default:expr $(=> $range:expr)? ; )*
        }
        $(
            $(#[doc = $section_doc:literal])*
            [$section:ident] pub struct $section_name:ident {
                $( $(#[doc = $key_doc:literal])* $key:ident : $key_type:ty = $key_default:expr $(=> $key_range:expr)? ; )*
            }
        )*
        $( tables: $(
            $(#[doc = $table_doc:literal])*
            [$table:ident . NAME] pub struct $table_name:ident {
                $( $(#[doc = $named_doc:literal])* $named:ident : $named_type:ty = $named_default:expr $(=> $named_range:expr)? ; )*
            }
        )* )?
    ) => {
        $crate::schema::section! {
            $(#[$meta])* $name {
                $( $(#[doc = $doc])* $field: $type = $default, )*
                $( $(#[doc = $section_doc])* $section: $section_name = $section_name::default(), )*
                $( $( $(#[doc = $table_doc])* $table: std::collections::BTreeMap<String, $table_name> =
                    std::collections::BTreeMap::new(), )* )?
            }
        }
        $( $crate::schema::section! {
            $(#[doc = $section_doc])* $section_name { $( $(#[doc = $key_doc])* $key: $key_type = $key_default, )* }
        } )*
        $( $( $crate::schema::section! {
            $(#[doc = $table_doc])* $table_name { $( $(#[doc = $named_doc])* $named: $named_type = $named_default, )* }
        } )* )?

        const KEYS: &[$crate::Key<$name>] = &[
            $( $crate::schema::key!(stringify!($field), [$($doc)*], $field $(, $range)?), )*
            $( $( $crate::schema::key!(
                concat!(stringify!($section), ".", stringify!($key)), [$($key_doc)*], $section.$key $(, $key_range)?
            ), )* )*
        ];

        $( const TABLES: &[$crate::schema::Tables<$name>] = &[ $( $crate::schema::Tables {
            section: stringify!($table),
            doc: concat!($($table_doc, "\n"),*),
            keys: &[ $( (stringify!($named), concat!($($named_doc, "\n"),*)), )* ],
            defaults: || $crate::schema::table(&$table_name::default()),
            check: |all, key| {
                const KEYS: &[$crate::Key<$table_name>] =
                    &[ $( $crate::schema::key!(stringify!($named), [$($named_doc)*], $named $(, $named_range)?), )* ];
                let known = KEYS.iter().find(|known| known.name == key);
                known.map_or(Ok(()), |known| all.$table.values().try_for_each(known.check))
            },
        }, )* ]; )?
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

macro_rules! key {
    ($name:expr, [$($doc:literal)*], $($field:ident).+ $(, $range:expr)?) => {
        $crate::Key {
            name: $name,
            doc: concat!($($doc, "\n"),*),
            check: |from| {
                let range: Option<std::ops::RangeInclusive<u64>> = None;
                $( let range = range.or(Some($range)); )?
                $crate::schema::check(&from.$($field).+, range)
            },
        }
    };
}
pub(crate) use key;
