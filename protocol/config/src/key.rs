//! The keys of a configuration, as its declaration describes them.

use confique::meta::{Expr, FieldKind, LeafKind, Meta};

use crate::Configuration;

/// The placeholder in a key for a name chosen by the user: `vm.NAME.memory`.
pub(crate) const NAME: &str = "NAME";

/// One key of a configuration.
#[derive(Debug, Clone)]
pub struct Key {
    /// Its sections, from the outermost, and its own name.
    path: Vec<&'static str>,
    /// The lines of its documentation.
    pub(crate) doc: &'static [&'static str],
    /// The lines of its section's documentation.
    pub(crate) about: &'static [&'static str],
    /// Its default, as TOML would have it.
    pub(crate) default: Expr,
}

impl Key {
    /// All keys of configuration `T`: the top level, then each section.
    #[must_use]
    pub fn all<T: Configuration>() -> Vec<Self> {
        let mut keys = Vec::new();
        collect(&T::META, &[], &mut keys);
        keys
    }

    /// With its section: `shm.socket`.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.join(".")
    }

    /// Its name in its section.
    pub(crate) fn own_name(&self) -> &'static str {
        self.path.last().copied().unwrap_or_default()
    }

    /// The environment variable that sets it; `None` in a section that the user names.
    #[must_use]
    pub fn variable<T: Configuration>(&self) -> Option<String> {
        let words = self.path.join("_").to_ascii_uppercase();
        (!self.is_named()).then(|| T::PREFIX.to_owned() + &words)
    }

    /// Its section; empty at the top level.
    pub(crate) fn section(&self) -> String {
        let above = self.path.split_last().map_or(&[][..], |(_, above)| above);
        above.join(".")
    }

    /// The outermost section; empty at the top level.
    pub(crate) fn top_section(&self) -> String {
        match self.path.as_slice() {
            [section, _, ..] => (*section).to_owned(),
            _ => String::new(),
        }
    }

    /// Whether the user chooses the name of its section.
    pub(crate) fn is_named(&self) -> bool {
        self.path.contains(&NAME)
    }

    /// Whether `path` is the key's path.
    pub(crate) fn is_at(&self, path: &[&str]) -> bool {
        path.len() == self.path.len() && self.begins_with(path)
    }

    /// Whether `path` is the key's path or that of an enclosing section.
    pub(crate) fn begins_with(&self, path: &[&str]) -> bool {
        let parts = self.path.iter().zip(path);
        path.len() <= self.path.len()
            && parts
                .into_iter()
                .all(|(part, word)| part == word || *part == NAME)
    }
}

/// Appends the keys of the section at `above`. Those without a section come first, as TOML
/// demands.
fn collect(meta: &Meta, above: &[&'static str], keys: &mut Vec<Key>) {
    for field in meta.fields {
        let path = [above, &[field.name]].concat();
        match field.kind {
            FieldKind::Nested { meta } => collect(meta, &path, keys),
            FieldKind::Leaf { kind, .. } => keys.push(Key {
                path,
                doc: field.doc,
                about: meta.doc,
                default: match kind {
                    LeafKind::Required { default } => default.unwrap_or(Expr::Str("")),
                    LeafKind::Optional => Expr::Str(""),
                },
            }),
        }
    }
}
