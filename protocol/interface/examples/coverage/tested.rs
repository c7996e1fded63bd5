//! On which devices a function is tested, from the tests themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::path::Path;

use paragpu_interface::{Function, Serving};
use serde::Deserialize;
use serde_json::Value;

/// The devices: the key of their own differences in differences.json, and their name.
pub const DEVICES: [(&str, &str); 2] = [("cuda", "H100"), ("software", "software GPU")];

/// Test programs that have run on the software GPU alone.
const ON_SOFTWARE: [&str; 0] = [];

/// How far a function is tested on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Not by these tests.
    Not,
    /// Its errors equal those of NVIDIA's driver.
    Errors,
    /// A successful call's results equal those of NVIDIA's driver, or a test program that
    /// checks its results calls it.
    Success,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Not => "no",
            Self::Errors => "errors",
            Self::Success => "tested",
        })
    }
}

#[derive(Deserialize)]
struct Difference {
    /// By symbol: numbers of rows, or "refused", which no served function is.
    rows: BTreeMap<String, Value>,
}

/// What the parity test compares and what the test programs call.
pub struct Tests {
    /// By library and symbol: NVIDIA's answers on an H100, a row for each call. One without
    /// a status ended the process, or differs from run to run.
    answers: BTreeMap<String, Vec<Value>>,
    /// By "both" or a device: rows that differ for a listed reason.
    differences: BTreeMap<String, Vec<Difference>>,
    /// Words in the test programs.
    words: BTreeSet<String>,
    /// Words in those of [`ON_SOFTWARE`].
    on_software: BTreeSet<String>,
}

impl Tests {
    /// Reads the folder of the tests.
    pub fn read(tests: &Path) -> Result<Self, Box<dyn Error>> {
        let json = |name| std::fs::read_to_string(tests.join("parity").join(name));
        let (mut words, mut on_software) = (BTreeSet::new(), BTreeSet::new());
        for folder in ["programs", "programs/common"] {
            for entry in std::fs::read_dir(tests.join(folder))? {
                let path = entry?.path();
                let end = path.extension().and_then(|end| end.to_str());
                if matches!(end, Some("cu" | "cpp" | "h")) {
                    let text = std::fs::read_to_string(&path)?;
                    let split = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                    let name = path.file_stem().and_then(|name| name.to_str());
                    match name.is_some_and(|name| ON_SOFTWARE.contains(&name)) {
                        true => on_software.extend(split.map(str::to_owned)),
                        false => words.extend(split.map(str::to_owned)),
                    }
                }
            }
        }
        Ok(Self {
            answers: serde_json::from_str(&json("native-h100.json")?)?,
            differences: serde_json::from_str(&json("differences.json")?)?,
            words,
            on_software,
        })
    }

    /// Whether a reason is listed for which this row may differ on a device.
    fn is_excepted(&self, device: &str, symbol: &str, row: usize) -> bool {
        let lists = ["both", device].map(|name| self.differences.get(name));
        let mut entries = lists.into_iter().flatten().flatten();
        entries.any(|entry| {
            let rows = entry.rows.get(symbol).and_then(Value::as_array);
            rows.is_some_and(|rows| rows.contains(&row.into()))
        })
    }

    /// How far a function, whose name in programs is `name`, is tested on a device.
    pub fn extent(&self, library: &str, name: &str, function: &Function, device: &str) -> Extent {
        let symbols = function.symbols.iter().map(|symbol| symbol.name.as_str());
        let mut names = symbols.clone().chain([name]);
        let is_software = device == "software";
        if names
            .any(|name| self.words.contains(name) || is_software && self.on_software.contains(name))
        {
            return Extent::Success;
        }
        let mut extent = Extent::Not;
        for symbol in symbols {
            let rows = self.answers.get(&format!("{library}/{symbol}"));
            for (row, answer) in rows.into_iter().flatten().enumerate() {
                extent = extent.max(match answer.get("status").and_then(Value::as_i64) {
                    _ if self.is_excepted(device, symbol, row) => Extent::Not,
                    Some(0) => Extent::Success,
                    Some(_) => Extent::Errors,
                    None => Extent::Not,
                });
            }
        }
        // A host with software GPUs has no NVML, which answers these.
        match (device, &function.serving) {
            ("software", Serving::Figure { .. }) => extent.min(Extent::Errors),
            _ => extent,
        }
    }
}
