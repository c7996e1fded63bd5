//! What a configuration is: keys with type, default, range and meaning.

use std::collections::BTreeMap;

use toml::de::DeValue;

/// One key of a configuration.
pub struct Key<T: 'static> {
    /// With its section: `shm.socket`.
    pub name: &'static str,
    /// What it means.
    pub doc: &'static str,
    pub(crate) set_toml: fn(&mut T, &DeValue<'_>) -> Result<(), String>,
    pub(crate) set_text: fn(&mut T, &str) -> Result<(), String>,
    pub(crate) show: fn(&T) -> String,
}

impl<T: Configuration> Key<T> {
    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        let mut name = String::from(T::PREFIX);
        name.extend(self.name.chars().map(|c| match c {
            '.' => '_',
            other => other.to_ascii_uppercase(),
        }));
        name
    }

    /// Its value in `configuration`, as TOML.
    #[must_use]
    pub fn show(&self, configuration: &T) -> String {
        (self.show)(configuration)
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
    /// Name, meaning and default of each key of one.
    pub(crate) keys: fn() -> Vec<(&'static str, &'static str, String)>,
    /// Sets a key of the table of this name; `None` where there is no such key.
    pub(crate) set: Set<T>,
    /// Name of the table, key and value as TOML of each table that is there.
    pub(crate) show: fn(&T) -> Vec<(String, &'static str, String)>,
}

type Set<T> = fn(&mut T, &str, &str, Given<'_>) -> Option<Result<(), String>>;

/// A value as it was written.
#[derive(Clone, Copy)]
pub(crate) enum Given<'a> {
    Toml(&'a DeValue<'a>),
    Text(&'a str),
}

impl Given<'_> {
    pub(crate) fn put<T>(self, key: &Key<T>, into: &mut T) -> Result<(), String> {
        match self {
            Self::Toml(value) => (key.set_toml)(into, value),
            Self::Text(text) => (key.set_text)(into, text),
        }
    }
}

/// The tables' descriptions, for one type of table.
pub(crate) fn described<V: Default>(keys: &[Key<V>]) -> Vec<(&'static str, &'static str, String)> {
    let defaults = V::default();
    let described = |key: &Key<V>| (key.name, key.doc, (key.show)(&defaults));
    keys.iter().map(described).collect()
}

pub(crate) fn put_named<V: Default>(
    into: &mut BTreeMap<String, V>,
    keys: &[Key<V>],
    name: &str,
    key: &str,
    given: Given<'_>,
) -> Option<Result<(), String>> {
    let key = keys.iter().find(|known| known.name == key)?;
    Some(given.put(key, into.entry(name.to_owned()).or_default()))
}

pub(crate) fn show_named<V>(
    from: &BTreeMap<String, V>,
    keys: &'static [Key<V>],
) -> Vec<(String, &'static str, String)> {
    let shown = |(name, table): (&String, &V)| {
        let rows = keys
            .iter()
            .map(|key| (name.clone(), key.name, (key.show)(table)));
        rows.collect::<Vec<_>>()
    };
    from.iter().flat_map(shown).collect()
}

/// A set of keys that is read as a whole.
pub trait Configuration: Default + Clone + 'static {
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

    /// The sections that are named by whoever writes them.
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
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $type, )*
            $( $(#[doc = $section_doc])* pub $section: $section_name, )*
            $( $( $(#[doc = $table_doc])* pub $table: std::collections::BTreeMap<String, $table_name>, )* )?
        }

        $( $(
            $(#[doc = $table_doc])*
            #[derive(Debug, Clone, PartialEq)]
            pub struct $table_name {
                $( $(#[doc = $named_doc])* pub $named: $named_type, )*
            }

            impl Default for $table_name {
                fn default() -> Self {
                    Self { $( $named: $named_default, )* }
                }
            }

            impl $table_name {
                const KEYS: &'static [$crate::Key<Self>] = &[ $(
                    $crate::schema::key!(
                        $table_name, stringify!($named), concat!($($named_doc, "\n"),*),
                        $named, $named_type $(, $named_range)?
                    ),
                )* ];
            }
        )*

        const TABLES: &[$crate::schema::Tables<$name>] = &[ $(
            $crate::schema::Tables {
                section: stringify!($table),
                doc: concat!($($table_doc, "\n"),*),
                keys: || $crate::schema::described($table_name::KEYS),
                set: |into, name, key, given| {
                    $crate::schema::put_named(&mut into.$table, $table_name::KEYS, name, key, given)
                },
                show: |from| $crate::schema::show_named(&from.$table, $table_name::KEYS),
            },
        )* ]; )?

        $(
            $(#[doc = $section_doc])*
            #[derive(Debug, Clone, PartialEq)]
            pub struct $section_name {
                $( $(#[doc = $key_doc])* pub $key: $key_type, )*
            }
        )*

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: $default, )*
                    $( $section: $section_name { $( $key: $key_default, )* }, )*
                    $( $( $table: std::collections::BTreeMap::new(), )* )?
                }
            }
        }

        const KEYS: &[$crate::Key<$name>] = &[
            $( $crate::schema::key!($name, stringify!($field), concat!($($doc, "\n"),*), $field, $type $(, $range)?), )*
            $( $(
                $crate::schema::key!(
                    $name,
                    concat!(stringify!($section), ".", stringify!($key)),
                    concat!($($key_doc, "\n"),*),
                    $section.$key, $key_type $(, $key_range)?
                ),
            )* )*
        ];
    };
}
pub(crate) use configuration;

macro_rules! key {
    ($name:ident, $path:expr, $doc:expr, $($field:ident).+, $type:ty $(, $range:expr)?) => {
        $crate::Key {
            name: $path,
            doc: $doc,
            set_toml: |into, value| {
                let value = <$type as $crate::Setting>::from_toml(value)?;
                $( $crate::schema::check_range(&value, $range)?; )?
                into.$($field).+ = value;
                Ok(())
            },
            set_text: |into, text| {
                let value = <$type as $crate::Setting>::from_text(text)?;
                $( $crate::schema::check_range(&value, $range)?; )?
                into.$($field).+ = value;
                Ok(())
            },
            show: |from| $crate::Setting::to_toml(&from.$($field).+),
        }
    };
}
pub(crate) use key;

/// Refuses a number outside of `range`.
pub(crate) fn check_range<T: crate::Setting>(
    value: &T,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), String> {
    match value.number() {
        Some(number) if !range.contains(&number) => Err(format!(
            "expects a value from {} to {}, not {}",
            crate::Size(*range.start()),
            crate::Size(*range.end()),
            value.to_toml()
        )),
        _ => Ok(()),
    }
}
