//! Writes what is served: `coverage JSON PAGE`.
//!
//! A name is what a program asks for: `cuMemAlloc`, whatever its version. It is
//! served if a program built for CUDA 13.0 gets a symbol that is.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;

use paragpu_interface::{Function, Library};
use serde::Serialize;

/// What of one library is served.
#[derive(Default, Serialize)]
struct Coverage {
    served: Vec<String>,
    refused: BTreeMap<String, String>,
}

/// The newest version of CUDA that programs are built for.
const PROGRAMS: u32 = 13_000;

fn coverage<'l>(
    library: &'l Library,
    why: impl Fn(&'l Function) -> Option<&'l str>,
) -> (Coverage, BTreeMap<String, &'static str>) {
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
    let mut coverage = Coverage::default();
    let mut chapters = BTreeMap::new();
    for (name, (_, chapter, function)) in newest {
        chapters.insert(name.to_owned(), chapter);
        match why(function) {
            None => coverage.served.push(name.to_owned()),
            Some(why) => {
                coverage.refused.insert(name.to_owned(), why.to_owned());
            }
        }
    }
    (coverage, chapters)
}

/// A section of the page: a row a chapter, then each refusal.
fn section(
    title: &str,
    coverage: &Coverage,
    chapters: &BTreeMap<String, &'static str>,
) -> Result<String, std::fmt::Error> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (name, chapter) in chapters {
        let count = counts.entry(chapter).or_default();
        count.1 += 1;
        count.0 += usize::from(!coverage.refused.contains_key(name));
    }
    let mut page = format!(
        "## {title}\n\n{} of {} names are served.\n\n| chapter | served | of |\n|---|---|---|\n",
        coverage.served.len(),
        chapters.len()
    );
    for (chapter, (served, all)) in counts {
        writeln!(page, "| {chapter} | {served} | {all} |")?;
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, why) in &coverage.refused {
        reasons.entry(why).or_default().push(name);
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

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(json), Some(page)) = (arguments.next(), arguments.next()) else {
        return Err("usage: coverage JSON PAGE".into());
    };
    let (driver, runtime) = (paragpu_interface::driver()?, paragpu_interface::runtime()?);
    let nvml = paragpu_interface::nvml()?;
    let mut all = BTreeMap::new();
    let mut text = String::from(
        "# What is served\n\nDerived from the description of the interface \
         ([protocol/interface](../protocol/interface/README.md)) by `make coverage`. A function \
         that is not served exists, says its name once and returns NOT_SUPPORTED. A runtime \
         function counts as refused where the driver's function behind it is.\n\n",
    );
    let libraries: [(&str, &str, &Library); 3] = [
        ("driver", "Driver (libcuda.so.1)", &driver),
        ("runtime", "Runtime (libcudart.so)", &runtime),
        ("nvml", "NVML (libnvidia-ml.so.1)", &nvml),
    ];
    for (name, title, library) in libraries {
        let (coverage, chapters) =
            coverage(library, |function| library.why_refused(function, &driver));
        println!(
            "{name}: {} of {} served",
            coverage.served.len(),
            chapters.len()
        );
        text += &section(title, &coverage, &chapters)?;
        all.insert(name, coverage);
    }
    std::fs::write(json, serde_json::to_string_pretty(&all)? + "\n")?;
    std::fs::write(page, text.trim_end().to_owned() + "\n")?;
    Ok(())
}
