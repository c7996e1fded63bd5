//! Reads a configuration from its places, in their order.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::schema::{Configuration, Given, Key, Tables, nearest};
use crate::{Error, Origin};

/// Longest name of a section that is named by whoever writes it, in bytes.
const MAX_NAME: usize = 64;

/// Where to read from. See the crate's documentation for the order.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file.
    pub file: Option<PathBuf>,
    /// Whether the file must exist.
    pub required: bool,
    /// The directory of fragments.
    pub fragments: Option<PathBuf>,
    /// The environment; variables without the prefix are skipped.
    pub environment: Vec<(OsString, OsString)>,
    /// Keys and values from the command line.
    pub arguments: Vec<(String, String)>,
}

/// A configuration and where each of its values came from.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The values.
    pub values: T,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    origins: Vec<Origin>,
    /// Of keys in sections that are named: `vm.demo.memory`.
    named: BTreeMap<String, Origin>,
}

impl Sources {
    /// The places of this machine and process for configuration `T`.
    #[must_use]
    pub fn system<T: Configuration>() -> Self {
        let named =
            std::env::var_os(format!("{}CONFIG", T::PREFIX)).filter(|path| !path.is_empty());
        Self {
            required: named.is_some(),
            fragments: named.is_none().then(|| T::FRAGMENTS.into()),
            file: Some(named.map_or_else(|| T::FILE.into(), PathBuf::from)),
            environment: std::env::vars_os()
                .filter(|(name, _)| name.as_encoded_bytes().starts_with(T::PREFIX.as_bytes()))
                .collect(),
            arguments: Vec::new(),
        }
    }

    /// Only `file`, which must exist, and no environment.
    #[must_use]
    pub fn only(file: impl Into<PathBuf>) -> Self {
        Self {
            file: Some(file.into()),
            required: true,
            ..Self::default()
        }
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// [`Error`], for the first thing that is wrong.
    pub fn load<T: Configuration>(&self) -> Result<Loaded<T>, Error> {
        let mut loaded = Loaded {
            values: T::default(),
            files: Vec::new(),
            origins: vec![Origin::Default; T::keys().len()],
            named: BTreeMap::new(),
        };
        if let Some(file) = &self.file {
            loaded.read_file(file, self.required)?;
        }
        if let Some(directory) = &self.fragments {
            for file in fragments(directory)? {
                loaded.read_file(&file, true)?;
            }
        }
        for (name, value) in &self.environment {
            loaded.read_variable(name, value)?;
        }
        for (key, value) in &self.arguments {
            loaded.set(key, value, Origin::CommandLine)?;
        }
        loaded
            .values
            .check()
            .map_err(|(key, reason)| Error::Value {
                origin: loaded.origin(&key).clone(),
                key,
                reason,
            })?;
        Ok(loaded)
    }
}

/// The `*.toml` files of a directory by name; none where it does not exist.
fn fragments(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Read {
        path: directory.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(b".toml") && !bytes.starts_with(b".") {
            files.push(directory.join(&name));
        }
    }
    files.sort();
    Ok(files)
}

impl<T: Configuration> Loaded<T> {
    /// Every key with its value as TOML and its origin.
    pub fn entries(&self) -> impl Iterator<Item = (&'static Key<T>, String, &Origin)> {
        T::keys()
            .iter()
            .zip(&self.origins)
            .map(|(key, origin)| (key, key.show(&self.values), origin))
    }

    /// Every key that was set in a section with a name, `vm.demo.memory`, with
    /// its value as TOML and its origin.
    pub fn named_entries(&self) -> impl Iterator<Item = (String, String, &Origin)> {
        T::tables()
            .iter()
            .flat_map(|tables| {
                let shown = (tables.show)(&self.values).into_iter();
                shown.map(|(name, key, value)| (full_name(tables, &name, key), value))
            })
            .filter_map(|(key, value)| {
                let origin = self.named.get(&key)?;
                Some((key, value, origin))
            })
    }

    /// Where the value of `key` came from; [`Origin::Default`] for a key that
    /// does not exist.
    #[must_use]
    pub fn origin(&self, key: &str) -> &Origin {
        T::keys()
            .iter()
            .zip(&self.origins)
            .find(|(candidate, _)| candidate.name == key)
            .map(|(_, origin)| origin)
            .or_else(|| self.named.get(key))
            .unwrap_or(&Origin::Default)
    }

    fn read_file(&mut self, path: &Path, required: bool) -> Result<(), Error> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
                return Ok(());
            }
            text => text.map_err(|source| Error::Read {
                path: path.to_owned(),
                source,
            })?,
        };
        self.files.push(path.to_owned());
        let at = |offset: usize| Origin::File {
            path: path.to_owned(),
            line: 1 + text
                .bytes()
                .take(offset)
                .filter(|byte| *byte == b'\n')
                .count(),
        };
        let table = DeTable::parse(&text).map_err(|error| Error::Syntax {
            origin: at(error.span().map_or(0, |span| span.start)),
            reason: error.message().trim_end().replace('\n', ", "),
        })?;
        self.read_table("", table.get_ref(), &at)
    }

    fn read_table(
        &mut self,
        section: &str,
        table: &DeTable<'_>,
        at: &dyn Fn(usize) -> Origin,
    ) -> Result<(), Error> {
        // In order of lines, so that the first mistake is the one reported.
        let mut lines: Vec<(&Spanned<_>, &Spanned<DeValue<'_>>)> = table.iter().collect();
        lines.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in lines {
            let origin = at(key.span().start);
            let word: &str = key.get_ref();
            let name = match section {
                "" => word.to_owned(),
                section => format!("{section}.{word}"),
            };
            let is_section =
                section.is_empty() && T::keys().iter().any(|key| key.section() == word);
            let tables = T::tables().iter().find(|tables| tables.section == word);
            if let Some(tables) = tables.filter(|_| section.is_empty()) {
                self.read_tables(tables, value.get_ref(), &origin, at)?;
                continue;
            }
            match value.get_ref() {
                DeValue::Table(inner) if is_section => self.read_table(word, inner, at)?,
                _ if is_section => {
                    return Err(Error::Value {
                        origin,
                        key: name,
                        reason: format!("is a section: write [{word}]"),
                    });
                }
                DeValue::Table(_) if section.is_empty() && self.key(&name).is_none() => {
                    let sections = T::keys().iter().map(Key::section).filter(|s| !s.is_empty());
                    let sections = sections.chain(T::tables().iter().map(|tables| tables.section));
                    return Err(Error::Unknown {
                        origin,
                        what: "section",
                        hint: hint::<T>(&name, nearest(word, sections)),
                        key: name,
                    });
                }
                scalar => {
                    self.apply(&name, origin, |key, values| (key.set_toml)(values, scalar))?
                }
            }
        }
        Ok(())
    }

    /// Reads `[vm.a]`, `[vm.b]`, …
    fn read_tables(
        &mut self,
        tables: &Tables<T>,
        value: &DeValue<'_>,
        origin: &Origin,
        at: &dyn Fn(usize) -> Origin,
    ) -> Result<(), Error> {
        let wrong = |origin: Origin, key: &str| Error::Value {
            origin,
            key: key.to_owned(),
            reason: format!("is a section: write [{}.NAME]", tables.section),
        };
        let DeValue::Table(all) = value else {
            return Err(wrong(origin.clone(), tables.section));
        };
        let mut lines: Vec<(&Spanned<_>, &Spanned<DeValue<'_>>)> = all.iter().collect();
        lines.sort_by_key(|(name, _)| name.span().start);
        for (name, table) in lines {
            let origin = at(name.span().start);
            let name: &str = name.get_ref();
            let DeValue::Table(table) = table.get_ref() else {
                return Err(wrong(origin, &format!("{}.{name}", tables.section)));
            };
            let mut keys: Vec<(&Spanned<_>, &Spanned<DeValue<'_>>)> = table.iter().collect();
            keys.sort_by_key(|(key, _)| key.span().start);
            for (key, value) in keys {
                let origin = at(key.span().start);
                self.apply_named(
                    tables,
                    name,
                    key.get_ref(),
                    Given::Toml(value.get_ref()),
                    origin,
                )?;
            }
        }
        Ok(())
    }

    fn apply_named(
        &mut self,
        tables: &Tables<T>,
        name: &str,
        key: &str,
        given: Given<'_>,
        origin: Origin,
    ) -> Result<(), Error> {
        let full = full_name(tables, name, key);
        let good = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(char::is_control);
        let set = match good {
            true => (tables.set)(&mut self.values, name, key, given),
            false => Some(Err(format!(
                "is of a name of more than {MAX_NAME} bytes, of none, or of one that cannot be printed"
            ))),
        };
        match set {
            Some(Ok(())) => {
                self.named.insert(full, origin);
                Ok(())
            }
            Some(Err(reason)) => Err(Error::Value {
                origin,
                key: full,
                reason,
            }),
            None => {
                let keys = (tables.keys)();
                let near = nearest(key, keys.iter().map(|(name, ..)| *name));
                Err(Error::Unknown {
                    origin,
                    what: "key",
                    hint: near.map_or_else(String::new, |near| {
                        format!("; did you mean `{}`?", full_name(tables, name, near))
                    }),
                    key: full,
                })
            }
        }
    }

    fn read_variable(&mut self, name: &OsString, value: &OsString) -> Result<(), Error> {
        let shown = name.to_string_lossy();
        if !shown.starts_with(T::PREFIX)
            || shown == format!("{}CONFIG", T::PREFIX)
            || T::FOREIGN.iter().any(|prefix| shown.starts_with(prefix))
        {
            return Ok(());
        }
        let origin = Origin::Environment(shown.clone().into_owned());
        let Some(key) = T::keys().iter().find(|key| key.variable() == shown) else {
            let variables: Vec<String> = T::keys().iter().map(Key::variable).collect();
            let near = nearest(&shown, variables.iter().map(String::as_str));
            return Err(Error::Unknown {
                origin,
                what: "variable",
                hint: hint::<T>("", near),
                key: shown.into_owned(),
            });
        };
        match value.to_str() {
            Some(text) => self.set(key.name, text, origin),
            None => Err(Error::Value {
                origin,
                key: key.name.to_owned(),
                reason: "expects text in UTF-8".into(),
            }),
        }
    }

    fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), Error> {
        for tables in T::tables() {
            let inside = name
                .strip_prefix(tables.section)
                .and_then(|rest| rest.strip_prefix('.'));
            // The name may have dots, the key has none.
            if let Some((name, key)) = inside.and_then(|inside| inside.rsplit_once('.')) {
                return self.apply_named(tables, name, key, Given::Text(text), origin);
            }
        }
        self.apply(name, origin, |key, values| (key.set_text)(values, text))
    }

    fn key(&self, name: &str) -> Option<usize> {
        T::keys().iter().position(|key| key.name == name)
    }

    fn apply(
        &mut self,
        name: &str,
        origin: Origin,
        set: impl FnOnce(&Key<T>, &mut T) -> Result<(), String>,
    ) -> Result<(), Error> {
        let Some((index, key)) = T::keys()
            .iter()
            .enumerate()
            .find(|(_, key)| key.name == name)
        else {
            return Err(Error::Unknown {
                origin,
                what: "key",
                hint: hint::<T>(name, nearest(name, T::keys().iter().map(|key| key.name))),
                key: name.to_owned(),
            });
        };
        set(key, &mut self.values).map_err(|reason| Error::Value {
            origin: origin.clone(),
            key: name.to_owned(),
            reason,
        })?;
        if let Some(place) = self.origins.get_mut(index) {
            *place = origin;
        }
        Ok(())
    }
}

/// `vm.demo.memory`.
fn full_name<T>(tables: &Tables<T>, name: &str, key: &str) -> String {
    format!("{}.{name}.{key}", tables.section)
}

/// The end of the sentence about an unknown key.
fn hint<T: Configuration>(name: &str, near: Option<&str>) -> String {
    match (T::elsewhere(name), near) {
        (Some(file), _) => format!(" here; it belongs in {file}"),
        (None, Some(near)) => format!("; did you mean `{near}`?"),
        (None, None) => String::new(),
    }
}
