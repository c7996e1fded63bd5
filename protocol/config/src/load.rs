//! Reads a configuration from its places, in their order.
//!
//! Each value is looked at alone when it is met, so that a mistake is told with
//! its line; then the values of all places become one table, and serde makes
//! the configuration of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use crate::schema::{self, Configuration, Key, Tables, nearest};
use crate::setting::sentence;
use crate::{Error, Origin};

/// Longest name of a section that the user names, in bytes.
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
#[derive(Debug, Clone, Default)]
pub struct Loaded<T> {
    /// The values.
    pub values: T,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// By key, `vm.demo.memory` too; of those that were set.
    origins: BTreeMap<String, Origin>,
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
        let mut reader = Reader::<T>::default();
        if let Some(file) = &self.file {
            reader.file(file, self.required)?;
        }
        if let Some(directory) = &self.fragments {
            for file in fragments(directory)? {
                reader.file(&file, true)?;
            }
        }
        for (name, value) in &self.environment {
            reader.variable(name, value)?;
        }
        for (key, value) in &self.arguments {
            reader.text(key, value, Origin::CommandLine)?;
        }
        reader.finish()
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
        let table = schema::table(&self.values);
        T::keys().iter().map(move |key| {
            let value = schema::find(&table, key.name).map_or_else(String::new, Value::to_string);
            (key, value, self.origin(key.name))
        })
    }

    /// Every key that was set in a section with a name, `vm.demo.memory`, with
    /// its value as TOML and its origin.
    pub fn named_entries(&self) -> impl Iterator<Item = (String, String, &Origin)> {
        let table = schema::table(&self.values);
        let mut entries = Vec::new();
        for tables in T::tables() {
            let named = table.get(tables.section).and_then(Value::as_table);
            for (name, one) in named.into_iter().flatten() {
                for (key, _) in tables.keys {
                    let full = [tables.section, name, key].join(".");
                    if let (Some(value), Some(origin)) = (one.get(key), self.origins.get(&full)) {
                        entries.push((full, value.to_string(), origin));
                    }
                }
            }
        }
        entries.into_iter()
    }

    /// Where the value of `key` came from; [`Origin::Default`] for a key that
    /// does not exist.
    #[must_use]
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }
}

/// What was read so far.
#[derive(Default)]
struct Reader<T> {
    loaded: Loaded<T>,
    table: Table,
}

/// What stands at a path of names.
enum Target<T: 'static> {
    Section,
    /// `[vm]`, of which only the parts of a part have values.
    Names(&'static Tables<T>),
    Key(&'static Key<T>),
    Named(&'static Tables<T>),
    Unknown,
}

fn place<T: Configuration>(path: &[&str]) -> Target<T> {
    let section = path.first().copied().unwrap_or_default();
    let tables = T::tables().iter().find(|tables| tables.section == section);
    match (tables, path) {
        (Some(tables), [_] | [_, _]) => Target::Names(tables),
        (Some(tables), [_, _, key]) if tables.keys.iter().any(|(known, _)| known == key) => {
            Target::Named(tables)
        }
        (Some(_), _) => Target::Unknown,
        (None, [_]) if T::keys().iter().any(|key| key.section() == section) => Target::Section,
        _ => match T::keys().iter().find(|key| key.name == path.join(".")) {
            Some(key) => Target::Key(key),
            None => Target::Unknown,
        },
    }
}

impl<T: Configuration> Reader<T> {
    fn finish(mut self) -> Result<Loaded<T>, Error> {
        if !self.table.is_empty() {
            // Each value was good alone, so the whole is.
            self.loaded.values = T::deserialize(self.table).map_err(|error| Error::Syntax {
                origin: Origin::Default,
                reason: error.to_string(),
            })?;
        }
        match self.loaded.values.check() {
            Ok(()) => Ok(self.loaded),
            Err((key, reason)) => Err(Error::Value {
                origin: self.loaded.origin(&key).clone(),
                key,
                reason,
            }),
        }
    }

    fn file(&mut self, path: &Path, required: bool) -> Result<(), Error> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
                return Ok(());
            }
            text => text.map_err(|source| Error::Read {
                path: path.to_owned(),
                source,
            })?,
        };
        self.loaded.files.push(path.to_owned());
        let at = |offset: usize| Origin::File {
            path: path.to_owned(),
            line: 1 + text
                .bytes()
                .take(offset)
                .filter(|byte| *byte == b'\n')
                .count(),
        };
        let syntax = |error: toml::de::Error| Error::Syntax {
            origin: at(error.span().map_or(0, |span| span.start)),
            reason: error.message().trim_end().replace('\n', ", "),
        };
        let spans = DeTable::parse(&text).map_err(syntax)?;
        let values: Table = toml::from_str(&text).map_err(syntax)?;
        self.section(&[], spans.get_ref(), &values, &at)
    }

    fn section(
        &mut self,
        above: &[&str],
        spans: &DeTable<'_>,
        values: &Table,
        at: &dyn Fn(usize) -> Origin,
    ) -> Result<(), Error> {
        // In order of lines, so that the first mistake is the one reported.
        let mut lines: Vec<_> = spans.iter().collect();
        lines.sort_by_key(|(key, _)| key.span().start);
        for (key, span) in lines {
            let word: &str = key.get_ref();
            let path = [above, &[word]].concat();
            let origin = at(key.span().start);
            let (Some(value), place) = (values.get(word), place::<T>(&path)) else {
                continue;
            };
            match (place, span.get_ref(), value) {
                (
                    Target::Section | Target::Names(_),
                    DeValue::Table(spans),
                    Value::Table(values),
                ) => self.section(&path, spans, values, at)?,
                (Target::Section, ..) => {
                    let reason = format!("is a section: write [{word}]");
                    return Err(wrong(&path, origin, reason));
                }
                (Target::Names(tables), ..) => {
                    let reason = format!("is a section: write [{}.NAME]", tables.section);
                    return Err(wrong(&path, origin, reason));
                }
                (Target::Unknown, DeValue::Table(_), _) if above.is_empty() => {
                    let sections = T::keys().iter().map(Key::section).filter(|s| !s.is_empty());
                    let sections = sections.chain(T::tables().iter().map(|tables| tables.section));
                    return Err(unknown::<T>(
                        "section",
                        word,
                        origin,
                        nearest(word, sections),
                    ));
                }
                _ => self.value(&path, value.clone(), origin)?,
            }
        }
        Ok(())
    }

    /// Takes the value of one key.
    fn value(&mut self, path: &[&str], value: Value, origin: Origin) -> Result<(), Error> {
        let place = place::<T>(path);
        let full = path.join(".");
        match (&place, path) {
            (Target::Key(_), _) => {}
            (Target::Named(_), [_, name, _]) => {
                if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
                    let reason = format!(
                        "is of a name of more than {MAX_NAME} bytes, of none, or of one that \
                         cannot be printed"
                    );
                    return Err(wrong(path, origin, reason));
                }
            }
            (_, [section, name, key]) => {
                let of = T::tables().iter().filter(|one| one.section == *section);
                let near = nearest(key, of.flat_map(|one| one.keys).map(|(known, _)| *known));
                let near = near.map(|near| [*section, name, near].join("."));
                return Err(unknown::<T>("key", &full, origin, near.as_deref()));
            }
            _ => {
                let near = nearest(&full, T::keys().iter().map(|key| key.name));
                return Err(unknown::<T>("key", &full, origin, near));
            }
        }
        let mut alone = Table::new();
        put(&mut alone, path, value.clone());
        let checked = T::deserialize(alone)
            .map_err(|error| sentence(error.message()))
            .and_then(|probe| match place {
                Target::Key(key) => (key.check)(&probe),
                Target::Named(tables) => (tables.check)(&probe, path.last().unwrap_or(&"")),
                _ => Ok(()),
            });
        checked.map_err(|reason| wrong(path, origin.clone(), reason))?;
        put(&mut self.table, path, value);
        self.loaded.origins.insert(full, origin);
        Ok(())
    }

    fn variable(&mut self, name: &OsStr, value: &OsStr) -> Result<(), Error> {
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
            return Err(unknown::<T>("variable", &shown, origin, near));
        };
        match value.to_str() {
            Some(text) => self.text(key.name, text, origin),
            None => Err(wrong(&[key.name], origin, "expects text in UTF-8".into())),
        }
    }

    /// Takes the value of one key from where everything is text.
    fn text(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), Error> {
        let mut path: Vec<&str> = name.splitn(2, '.').collect();
        let mut default = schema::find(&schema::table(&T::default()), name).cloned();
        for tables in T::tables() {
            let inside = name
                .strip_prefix(tables.section)
                .and_then(|rest| rest.strip_prefix('.'));
            // The name may have dots, the key has none.
            if let Some((name, key)) = inside.and_then(|inside| inside.rsplit_once('.')) {
                path = vec![tables.section, name, key];
                default = (tables.defaults)().get(key).cloned();
            }
        }
        self.value(&path, guess(default.as_ref(), text), origin)
    }
}

/// A text as TOML, so that it has the type of the key's default.
fn guess(default: Option<&Value>, text: &str) -> Value {
    match (default, text) {
        (Some(Value::Boolean(_)), "1" | "true") => Value::Boolean(true),
        (Some(Value::Boolean(_)), "0" | "false") => Value::Boolean(false),
        (Some(Value::Integer(_)), number) => match number.parse() {
            Ok(number) => Value::Integer(number),
            Err(_) => number.into(),
        },
        (Some(Value::Array(_)), list) => {
            let items = list.split(',').map(str::trim);
            let items = items.filter(|item| !item.is_empty());
            let number = Value::Integer(0);
            Value::Array(items.map(|item| guess(Some(&number), item)).collect())
        }
        (_, text) => text.into(),
    }
}

fn put(table: &mut Table, path: &[&str], value: Value) {
    match path {
        [] => {}
        [key] => drop(table.insert((*key).to_owned(), value)),
        [section, rest @ ..] => {
            let inner = table
                .entry(*section)
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

fn wrong(path: &[&str], origin: Origin, reason: String) -> Error {
    let key = path.join(".");
    Error::Value {
        origin,
        key,
        reason,
    }
}

fn unknown<T: Configuration>(
    what: &'static str,
    key: &str,
    origin: Origin,
    near: Option<&str>,
) -> Error {
    let hint = match (T::elsewhere(key), near) {
        (Some(file), _) => format!(" here; it belongs in {file}"),
        (None, Some(near)) => format!("; did you mean `{near}`?"),
        (None, None) => String::new(),
    };
    Error::Unknown {
        origin,
        what,
        key: key.to_owned(),
        hint,
    }
}
