//! What a configuration is: keys with type, default, range and meaning.

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

    /// The file to which a key belongs that is not one of this configuration.
    fn elsewhere(key: &str) -> Option<&'static str>;

    /// Checks what concerns several keys.
    ///
    /// # Errors
    /// The key to blame, and the rest of the sentence.
    fn check(&self) -> Result<(), (&'static str, String)> {
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
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $type, )*
            $( $(#[doc = $section_doc])* pub $section: $section_name, )*
        }

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
