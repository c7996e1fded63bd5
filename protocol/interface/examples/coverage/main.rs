//! Writes what is served, and on which devices it is tested: `coverage JSON PAGE`.
//!
//! A name is what a program asks for: `cuMemAlloc`, whatever its version. It is
//! served if a program built for CUDA 13.0 gets a symbol that is.

mod tested;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use paragpu_interface::{Function, Library, Serving};
use serde::Serialize;
use tested::{DEVICES, Extent, Tests};

/// A name, and what becomes of a call.
struct Entry<'l> {
    name: &'l str,
    chapter: &'static str,
    /// `None`: it is served.
    why_refused: Option<&'l str>,
    /// By device.
    extents: [Extent; DEVICES.len()],
}

/// What of one library is served.
#[derive(Default, Serialize)]
struct Coverage<'l> {
    served: Vec<&'l str>,
    refused: BTreeMap<&'l str, &'l str>,
    /// By device: what is served and tested there.
    tested: BTreeMap<&'static str, Tested<'l>>,
}

/// Names by the extent of their tests.
#[derive(Default, Serialize)]
struct Tested<'l> {
    success: Vec<&'l str>,
    errors: Vec<&'l str>,
}

/// The newest version of CUDA that programs are built for.
const PROGRAMS: u32 = 13_000;

/// How far the driver's functions behind tested functions of the runtime are tested: by
/// name, on each device.
type Behind = BTreeMap<String, [Extent; DEVICES.len()]>;

fn behind(runtime: &Library, entries: &[Entry<'_>]) -> Behind {
    let tested: BTreeMap<&str, _> = entries.iter().map(|e| (e.name, e.extents)).collect();
    let mut behind = Behind::new();
    for function in runtime.functions() {
        let extents = function
            .symbols
            .first()
            .and_then(|s| tested.get(s.base.as_str()));
        let Some(extents) = extents else { continue };
        let direct = match &function.serving {
            Serving::Direct { function, .. } => Some(function),
            _ => None,
        };
        for name in function.needs.iter().chain(direct) {
            let known = behind.entry(name.clone()).or_insert(*extents);
            *known = std::array::from_fn(|device| known[device].max(extents[device]));
        }
    }
    behind
}

/// All names of a library.
fn entries<'l>(
    key: &str,
    library: &'l Library,
    driver: &'l Library,
    tests: &Tests,
    behind: &Behind,
) -> Vec<Entry<'l>> {
    let mut newest: BTreeMap<&str, (u32, &'static str, &Function)> = BTreeMap::new();
    for chapter in &library.chapters {
        for function in &chapter.functions {
            for symbol in &function.symbols {
                if symbol.since > PROGRAMS || symbol.per_thread {
                    continue;
                }
                let known = newest.entry(&symbol.base);
                let known = known.or_insert((symbol.since, chapter.name, function));
                if known.0 < symbol.since {
                    *known = (symbol.since, chapter.name, function);
                }
            }
        }
    }
    let entry = |(name, (_, chapter, function)): (&'l str, (_, _, &'l Function))| {
        let mut extents = DEVICES.map(|(device, _)| tests.extent(key, name, function, device));
        for (extent, through) in extents
            .iter_mut()
            .zip(behind.get(&function.name).into_iter().flatten())
        {
            *extent = (*extent).max(*through);
        }
        Entry {
            name,
            chapter,
            why_refused: library.why_refused(function, driver),
            extents,
        }
    };
    newest.into_iter().map(entry).collect()
}

fn coverage<'l>(entries: &[Entry<'l>]) -> Coverage<'l> {
    let mut coverage = Coverage::default();
    for entry in entries {
        if let Some(why) = entry.why_refused {
            coverage.refused.insert(entry.name, why);
            continue;
        }
        coverage.served.push(entry.name);
        for ((_, device), extent) in DEVICES.into_iter().zip(entry.extents) {
            let tested = coverage.tested.entry(device).or_default();
            match extent {
                Extent::Success => tested.success.push(entry.name),
                Extent::Errors => tested.errors.push(entry.name),
                Extent::Not => {}
            }
        }
    }
    coverage
}

/// A section of the page: a row a chapter, then what is tested less, then each refusal.
fn section(title: &str, entries: &[Entry<'_>]) -> Result<String, std::fmt::Error> {
    let [first, second] = DEVICES.map(|(_, device)| device);
    let served = |entry: &&Entry<'_>| entry.why_refused.is_none();
    let mut page = format!(
        "## {title}\n\n{} of {} names are served.\n\n\
         | chapter | served | of | tested on {first} | on {second} |\n|---|---|---|---|---|\n",
        entries.iter().filter(served).count(),
        entries.len()
    );
    let mut chapters: BTreeMap<&str, Vec<&Entry<'_>>> = BTreeMap::new();
    for entry in entries {
        chapters.entry(entry.chapter).or_default().push(entry);
    }
    for (chapter, all) in chapters {
        let served: Vec<_> = all.iter().copied().filter(served).collect();
        let tested = |device: usize| {
            let whole = |entry: &&&Entry<'_>| entry.extents[device] == Extent::Success;
            served.iter().filter(whole).count()
        };
        let (served, all, first, second) = (served.len(), all.len(), tested(0), tested(1));
        writeln!(
            page,
            "| {chapter} | {served} | {all} | {first} | {second} |"
        )?;
    }
    let mut less: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for entry in entries.iter().filter(served) {
        if entry.extents != [Extent::Success; DEVICES.len()] {
            less.entry(entry.extents).or_default().push(entry.name);
        }
    }
    if !less.is_empty() {
        write!(
            page,
            "\n| on {first} | on {second} | functions |\n|---|---|---|\n"
        )?;
    }
    for ([first, second], names) in less.iter().rev() {
        writeln!(page, "| {first} | {second} | {} |", names.join(" "))?;
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in entries {
        if let Some(why) = entry.why_refused {
            reasons.entry(why).or_default().push(entry.name);
        }
    }
    if !reasons.is_empty() {
        page.push_str("\n| refused because | functions |\n|---|---|\n");
    }
    for (why, names) in reasons {
        writeln!(page, "| {why} | {} |", names.join(" "))?;
    }
    page.push('\n');
    Ok(page)
}

/// The uses of served functions that the driver's sources refuse by `unsupported_use!`, each
/// with its reason.
fn refused_uses(folder: &Path, uses: &mut BTreeSet<(String, String)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            refused_uses(&path, uses)?;
        } else if path.extension().is_some_and(|name| name == "rs") {
            let text = std::fs::read_to_string(&path)?;
            for call in text.split("unsupported_use!(").skip(1) {
                let mut literals = call.split('"').skip(1).step_by(2);
                let (what, why) = (literals.next(), literals.next());
                let pair = what.unwrap_or_default().to_owned();
                uses.insert((pair, why.unwrap_or_default().to_owned()));
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(json), Some(page)) = (arguments.next(), arguments.next()) else {
        return Err("usage: coverage JSON PAGE".into());
    };
    let (driver, runtime) = (paragpu_interface::driver()?, paragpu_interface::runtime()?);
    let nvml = paragpu_interface::nvml()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tests = Tests::read(&root.join("tests"))?;
    let mut all = BTreeMap::new();
    let mut text = String::from(
        "# What is served\n\nDerived from the description of the interface \
         ([protocol/interface](../protocol/interface/README.md)) by `make coverage`. A function \
         that is not served exists, says its name once and returns NOT_SUPPORTED. A runtime \
         function counts as refused where the driver's function behind it is.\n\n\
         *Tested* on a device: a successful call's results equal those of NVIDIA's driver on an \
         H100 ([tests/parity](../tests/parity/native-h100.json), without the differences that \
         are listed there), or a test program that checks its results \
         ([tests/programs](../tests/programs/README.md)) calls the function, or one of the runtime \
         that the description says to need it. *Errors*: only the \
         errors of wrong calls are compared. Tables below a section's first list the functions \
         that are served, but not tested on both devices. Tests of other kinds (the runtime's \
         `semantics.cu`, frameworks, libraries, unit tests) do not count here.\n\n",
    );
    let of_runtime = entries("runtime", &runtime, &driver, &tests, &Behind::new());
    let behind = behind(&runtime, &of_runtime);
    let of_driver = entries("driver", &driver, &driver, &tests, &behind);
    let of_nvml = entries("nvml", &nvml, &driver, &tests, &Behind::new());
    for (name, title, entries) in [
        ("driver", "Driver (libcuda.so.1)", of_driver),
        ("runtime", "Runtime (libcudart.so)", of_runtime),
        ("nvml", "NVML (libnvidia-ml.so.1)", of_nvml),
    ] {
        text += &section(title, &entries)?;
        let coverage = coverage(&entries);
        println!(
            "{name}: {} of {} served",
            coverage.served.len(),
            entries.len()
        );
        for (device, tested) in &coverage.tested {
            println!("  tested on {device}: {}", tested.success.len());
        }
        all.insert(name, coverage);
    }
    let mut uses = BTreeSet::new();
    refused_uses(&root.join("guest-frontend/cuda/src"), &mut uses)?;
    text += "## Uses of served functions that are refused\n\nThe call returns NOT_SUPPORTED, and \
             says the reason once.\n\n| use | reason |\n|---|---|\n";
    for (what, why) in uses {
        writeln!(text, "| {what} | {why} |")?;
    }
    std::fs::write(json, serde_json::to_string_pretty(&all)? + "\n")?;
    std::fs::write(page, text.trim_end().to_owned() + "\n")?;
    Ok(())
}
