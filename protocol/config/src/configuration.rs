//! What the guest's and the host's configuration have in common.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use confique::meta::{Field, FieldKind, Meta};
use confique::{Config, Layer};
use serde::{Deserialize, Serialize};

use crate::key::NAME;

/// A configuration that is loaded as a whole.
pub trait Configuration: Config + Default + Clone + Serialize + 'static {
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
    /// [`Conflict`] for the first constraint that is not met.
    fn check(&self) -> Result<(), Conflict>;
}

/// A constraint between keys that is not met.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The key at fault.
    pub key: String,
    /// The rest of the sentence.
    pub reason: String,
    /// The key that is set and requires this one, which may be at its default.
    pub required_by: Option<String>,
}

impl Conflict {
    pub(crate) fn new(key: String, reason: String) -> Self {
        Self {
            key,
            reason,
            required_by: None,
        }
    }

    pub(crate) fn required_by(self, key: &str) -> Self {
        Self {
            required_by: Some(key.to_owned()),
            ..self
        }
    }
}

/// Maximum number of bytes of a unix socket's path.
const MAX_SOCKET: usize = 107;

/// Checks that a socket can have this path.
pub(crate) fn check_socket(key: &str, path: &Path) -> Result<(), Conflict> {
    let length = path.as_os_str().len();
    match length > MAX_SOCKET {
        true => Err(Conflict::new(
            key.to_owned(),
            format!(
                "is a path of {length} bytes, and that of a socket has at most {MAX_SOCKET}: choose a \
                 shorter one"
            ),
        )),
        false => Ok(()),
    }
}

/// Implements [`Default`] for sections, from the defaults of their keys.
macro_rules! defaults {
    ($($section:ident),*) => { $(
        impl Default for $section {
            fn default() -> Self {
                $crate::configuration::from_layer(confique::Layer::empty())
            }
        }
    )* };
}
pub(crate) use defaults;

/// The section whose keys are set by `layer`, the others at their defaults.
///
/// # Panics
/// If a key has no default. Each has; the tests load both configurations without any source.
#[expect(
    clippy::panic,
    reason = "a missing default is a mistake in a declaration"
)]
pub(crate) fn from_layer<T: Config>(layer: T::Layer) -> T {
    match T::from_layer(layer.with_fallback(T::Layer::default_values())) {
        Ok(section) => section,
        Err(error) => panic!("{error}"),
    }
}

/// Sections whose names the user chooses, such as `[vm.NAME]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Named<T>(BTreeMap<String, T>);

impl<T> Deref for Named<T> {
    type Target = BTreeMap<String, T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> DerefMut for Named<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// The keys of [`Named`] sections that one source sets.
#[derive(Deserialize)]
#[serde(transparent)]
pub struct NamedLayer<L>(BTreeMap<String, L>);

impl<T: Config> Config for Named<T> {
    type Layer = NamedLayer<T::Layer>;

    const META: Meta = Meta {
        name: "Named",
        doc: &[],
        fields: &[Field {
            name: NAME,
            doc: &[],
            kind: FieldKind::Nested { meta: &T::META },
        }],
    };

    fn from_layer(layer: Self::Layer) -> Result<Self, confique::Error> {
        let complete = |(name, layer): (String, T::Layer)| {
            T::from_layer(layer.with_fallback(T::Layer::default_values()))
                .map(|section| (name, section))
        };
        let sections: Result<_, _> = layer.0.into_iter().map(complete).collect();
        sections.map(Self)
    }
}

impl<L: Layer> Layer for NamedLayer<L> {
    fn empty() -> Self {
        Self(BTreeMap::new())
    }

    /// None: a section exists only if it is named.
    fn default_values() -> Self {
        Self::empty()
    }

    fn from_env() -> Result<Self, confique::Error> {
        Ok(Self::empty())
    }

    fn with_fallback(mut self, fallback: Self) -> Self {
        for (name, below) in fallback.0 {
            let above = self.0.remove(&name).unwrap_or_else(L::empty);
            self.0.insert(name, above.with_fallback(below));
        }
        self
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_complete(&self) -> bool {
        self.0.values().all(L::is_complete)
    }
}
