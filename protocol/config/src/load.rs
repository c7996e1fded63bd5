//! Reads a configuration from its sources, in order.
//!
//! Each value is read by itself, so that errors name its line: as a layer of the
//! configuration with one key, which confique checks and puts above the layers of earlier
//! sources. The defaults come last.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use confique::Layer as _;
use confique::meta::Expr;
use serde::Deserialize as _;
use toml::de::{DeTable, ValueDeserializer};
use toml::{Table, Value};

use crate::configuration::from_layer;
use crate::files;
use crate::key::{Key, NAME};
use crate::nearest::nearest;
use crate::setting::sentence;
use crate::sys::is_privileged;
use crate::{Configuration, Error, Origin};

/// Maximum length of a section name chosen by the user, in bytes.
const MAX_SECTION_NAME: usize = 64;

/// The sources of a configuration. The crate's documentation describes their order.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The main file.
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

/// A configuration, and the origin of each value.
#[derive(Debug, Clone, Default)]
pub struct Loaded<T> {
    /// The values.
    pub values: T,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// The origins of values that were set, by the path of the key.
    origins: BTreeMap<Vec<String>, Origin>,
}

/// One key of a loaded configuration.
#[derive(Debug)]
pub struct Entry<'a> {
    /// With its section: `shm.socket`, `vm.demo.memory`.
    pub key: String,
    /// Its value, which is displayed as TOML.
    pub value: Value,
    /// The value's origin.
    pub origin: &'a Origin,
    /// The environment variable that sets it, if there is one.
    pub variable: Option<String>,
}

impl Sources {
    /// The sources of configuration `T` on this machine and in this process. If the program
    /// has more rights than its user, the environment is none of them.
    #[must_use]
    pub fn system<T: Configuration>() -> Self {
        match is_privileged() {
            true => Self::with_environment::<T>(std::iter::empty()),
            false => Self::with_environment::<T>(std::env::vars_os()),
        }
    }

    /// The sources of configuration `T` on this machine, with these variables.
    #[must_use]
    pub fn with_environment<T: Configuration>(
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Self {
        let environment: Vec<_> = variables
            .filter(|(name, _)| name.as_encoded_bytes().starts_with(T::PREFIX.as_bytes()))
            .collect();
        let file = format!("{}CONFIG", T::PREFIX);
        let mut given = environment.iter();
        let named = given.find(|(name, path)| *name == *file && !path.is_empty());
        let named = named.map(|(_, path)| PathBuf::from(path));
        Self {
            required: named.is_some(),
            fragments: named.is_none().then(|| T::FRAGMENTS.into()),
            file: Some(named.unwrap_or_else(|| T::FILE.into())),
            environment,
            arguments: Vec::new(),
        }
    }

    /// Only `file`, which must exist; no environment.
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
    /// [`Error`] for the first mistake.
    pub fn load<T: Configuration>(&self) -> Result<Loaded<T>, Error> {
        let mut reader = Reader::<T>::new();
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
            reader.text(&path_of(&reader.keys, key), value, Origin::CommandLine)?;
        }
        reader.finish()
    }
}

/// The `*.toml` files of a directory by name; none if it does not exist.
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
    /// All keys, then those set in named sections.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let table = Table::try_from(&self.values).unwrap_or_default();
        let entry = |path: &[&str], origin, variable| Entry {
            key: path.join("."),
            value: find(&table, path).cloned().unwrap_or_else(|| "".into()),
            origin,
            variable,
        };
        let keys = Key::all::<T>();
        let plain = keys.iter().filter_map(|key| {
            let variable = key.variable::<T>()?;
            let name = key.name();
            let path: Vec<&str> = name.split('.').collect();
            Some(entry(&path, self.origin_at(&path), Some(variable)))
        });
        let named = self.origins.iter().filter_map(|(path, origin)| {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let key = keys.iter().find(|key| key.is_at(&path))?;
            key.is_named().then(|| entry(&path, origin, None))
        });
        plain.chain(named).collect()
    }

    /// The origin of a key's value, or of the first one of a section that the user named;
    /// [`Origin::Default`] for an unknown key.
    #[must_use]
    pub fn origin(&self, key: &str) -> &Origin {
        self.origin_at(&path_of(&Key::all::<T>(), key))
    }

    fn origin_at(&self, path: &[&str]) -> &Origin {
        let path: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        let mut from = self.origins.range(path.clone()..);
        let first = from.next().filter(|(found, _)| found.starts_with(&path));
        first.map_or(&Origin::Default, |(_, origin)| origin)
    }
}

/// The keys whose values differ, except those in sections with a name of the user's choice.
#[must_use]
pub fn differing<T: Configuration>(one: &T, other: &T) -> Vec<String> {
    let [one, other] = [one, other].map(|values| Table::try_from(values).unwrap_or_default());
    let names = Key::all::<T>().into_iter().map(|key| key.name());
    let differs = |name: &String| {
        let path: Vec<&str> = name.split('.').collect();
        find(&one, &path) != find(&other, &path)
    };
    names.filter(differs).collect()
}

/// The value at a path.
fn find<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let first = table.get(*first)?;
    rest.iter().try_fold(first, |value, part| value.get(part))
}

/// The path of a key. A name chosen by the user may contain dots, and stand in quotes as in a
/// file.
fn path_of<'a>(keys: &[Key], key: &'a str) -> Vec<&'a str> {
    let (section, rest) = key.split_once('.').unwrap_or((key, ""));
    let named = keys
        .iter()
        .any(|key| key.begins_with(&[section, NAME]) && key.is_named());
    match rest.rsplit_once('.') {
        Some((name, key)) if named => {
            let inner = name.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
            vec![section, inner.unwrap_or(name), key]
        }
        _ if rest.is_empty() => vec![section],
        _ => vec![section, rest],
    }
}

/// A key in the section at `path`.
fn key_in<'a>(keys: &'a [Key], path: &[&str]) -> Option<&'a Key> {
    keys.iter()
        .find(|key| key.begins_with(path) && !key.is_at(path))
}

fn refused(path: &[&str], origin: Origin, reason: &str) -> Error {
    let reason = format!("`{}` {reason}", path.join("."));
    Error::Refused { origin, reason }
}

/// A configuration while it is being read.
struct Reader<T: Configuration> {
    keys: Vec<Key>,
    /// The values so far.
    layer: T::Layer,
    files: Vec<PathBuf>,
    origins: BTreeMap<Vec<String>, Origin>,
}

impl<T: Configuration> Reader<T> {
    fn new() -> Self {
        Self {
            keys: Key::all::<T>(),
            layer: T::Layer::empty(),
            files: Vec::new(),
            origins: BTreeMap::new(),
        }
    }

    fn finish(self) -> Result<Loaded<T>, Error> {
        let loaded = Loaded {
            values: from_layer::<T>(self.layer),
            files: self.files,
            origins: self.origins,
        };
        match loaded.values.check() {
            Ok(()) => Ok(loaded),
            Err(conflict) => {
                let set = [Some(&conflict.key), conflict.required_by.as_ref()];
                let mut origins = set.into_iter().flatten().map(|key| loaded.origin(key));
                let origin = origins.find(|origin| **origin != Origin::Default);
                let origin = origin.unwrap_or(&Origin::Default).clone();
                Err(refused(&[&conflict.key], origin, &conflict.reason))
            }
        }
    }

    fn file(&mut self, path: &Path, required: bool) -> Result<(), Error> {
        let text = match files::read_text(path) {
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
        let table = DeTable::parse(&text).map_err(|error| Error::Refused {
            origin: at(error.span().map_or(0, |span| span.start)),
            reason: misread(error.message()),
        })?;
        self.section(&[], table.get_ref(), &at)
    }

    fn section(
        &mut self,
        above: &[&str],
        table: &DeTable<'_>,
        at: &dyn Fn(usize) -> Origin,
    ) -> Result<(), Error> {
        // In order of lines, so that the first mistake is the one reported.
        let mut lines: Vec<_> = table.iter().collect();
        lines.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in lines {
            let path = [above, &[key.get_ref()]].concat();
            let origin = at(key.span().start);
            match value.get_ref().as_table() {
                Some(table) if key_in(&self.keys, &path).is_some() => {
                    self.section(&path, table, at)?
                }
                _ => {
                    let value = Value::deserialize(ValueDeserializer::from(value.clone()));
                    let value =
                        value.map_err(|error| refused(&path, origin.clone(), error.message()))?;
                    self.value(&path, value, origin)?;
                }
            }
        }
        Ok(())
    }

    /// Checks the value of a key and puts it above those of earlier sources.
    fn value(&mut self, path: &[&str], value: Value, origin: Origin) -> Result<(), Error> {
        let Some(key) = self.keys.iter().find(|key| key.is_at(path)) else {
            return Err(unknown::<T>(&self.keys, path, &value, origin));
        };
        if key.is_named()
            && let Some(name) = path.get(1)
            && let Some(reason) = unusable(name)
        {
            return Err(refused(path.get(..1).unwrap_or_default(), origin, &reason));
        }
        let nest =
            |value, part: &&str| Value::Table([((*part).to_owned(), value)].into_iter().collect());
        let alone = T::Layer::deserialize(path.iter().rfold(value, nest))
            .map_err(|error| refused(path, origin.clone(), &sentence(error.message())))?;
        let below = std::mem::replace(&mut self.layer, T::Layer::empty());
        self.layer = alone.with_fallback(below);
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        self.origins.insert(path, origin);
        Ok(())
    }

    fn variable(&mut self, name: &OsStr, value: &OsStr) -> Result<(), Error> {
        let shown = name.to_string_lossy();
        if !shown.starts_with(T::PREFIX)
            || shown == format!("{}CONFIG", T::PREFIX)
            || T::FOREIGN_PREFIXES
                .iter()
                .any(|prefix| shown.starts_with(prefix))
        {
            return Ok(());
        }
        let origin = Origin::Environment(shown.clone().into_owned());
        let variables: Vec<(String, String)> = self
            .keys
            .iter()
            .filter_map(|key| Some((key.variable::<T>()?, key.name())))
            .collect();
        let Some((_, key)) = variables.iter().find(|(variable, _)| *variable == shown) else {
            let near = nearest(&shown, variables.iter().map(|(variable, _)| &**variable));
            let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            let reason = format!("there is no variable `{shown}`{near}");
            return Err(Error::Refused { origin, reason });
        };
        let path = path_of(&self.keys, key);
        match value.to_str() {
            Some(text) => self.text(&path, text, origin),
            None => Err(refused(&path, origin, "expects text in UTF-8")),
        }
    }

    /// The same for sources in which every value is text.
    fn text(&mut self, path: &[&str], text: &str, origin: Origin) -> Result<(), Error> {
        let key = self.keys.iter().find(|key| key.is_at(path));
        self.value(path, guess(key.map(|key| key.default), text), origin)
    }
}

/// Why a section cannot have this name.
fn unusable(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("has a section with an empty name".into());
    }
    let good = name.len() <= MAX_SECTION_NAME && !name.contains(char::is_control);
    (!good).then(|| {
        format!(
            "has a section whose name is longer than {MAX_SECTION_NAME} bytes or cannot be printed: \
             {name:?}"
        )
    })
}

/// Converts text to TOML, with the type of the key's default. A list is items between commas, or
/// an array of TOML.
fn guess(default: Option<Expr>, text: &str) -> Value {
    match (default, text) {
        (Some(Expr::Bool(_)), "1" | "true") => true.into(),
        (Some(Expr::Bool(_)), "0" | "false") => false.into(),
        (Some(Expr::Integer(_)), number) => number_or_text(number),
        (Some(Expr::Array(_)), list) => array(list).unwrap_or_else(|| {
            let items = list.split(',').map(str::trim);
            let items = items.filter(|item| !item.is_empty());
            Value::Array(items.map(number_or_text).collect())
        }),
        (_, text) => text.into(),
    }
}

/// An array as it is written in TOML.
fn array(text: &str) -> Option<Value> {
    let value = ValueDeserializer::parse(text).ok()?;
    Value::deserialize(value).ok().filter(Value::is_array)
}

fn number_or_text(text: &str) -> Value {
    let number = text.parse::<i64>();
    number.map_or_else(|_| text.into(), Value::Integer)
}

/// The error for an unknown key at `path`.
fn unknown<T: Configuration>(keys: &[Key], path: &[&str], value: &Value, origin: Origin) -> Error {
    let full = path.join(".");
    if let Some(inside) = key_in(keys, path) {
        let reason = format!("is a section: write [{}]", inside.section());
        return refused(path, origin, &reason);
    }
    let (what, candidates): (_, Vec<String>) = match path {
        [_] if value.is_table() => ("section", keys.iter().map(Key::top_section).collect()),
        [_, name, _] => (
            "key",
            keys.iter()
                .map(|key| key.name().replace(NAME, name))
                .collect(),
        ),
        _ => ("key", keys.iter().map(Key::name).collect()),
    };
    let near = nearest(&full, candidates.iter().map(String::as_str));
    let others = Key::all::<T::Other>();
    let hint = match near {
        _ if others.iter().any(|key| key.begins_with(path)) => format!(
            " here; it belongs in the {}'s {} or {}",
            T::Other::SIDE,
            T::Other::FILE,
            T::Other::FRAGMENTS
        ),
        Some(near) => format!("; did you mean `{near}`?"),
        None => String::new(),
    };
    let reason = format!("there is no {what} `{full}`{hint}");
    Error::Refused { origin, reason }
}

/// The message for text that is not TOML.
fn misread(message: &str) -> String {
    let message = message.trim_end().replace('\n', ", ");
    // The parser takes any word that begins like `true` or `false` for a boolean.
    if message.starts_with("invalid boolean") {
        return format!("{message}; any other word stands in quotes");
    }
    message
}
