//! Python packages of a folder: which of them use CUDA, and whether programs that
//! use them can run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use paragpu_fatbin::{Form, Forms, forms};
use paragpu_redirect::image::Raw as _;
use paragpu_redirect::symbols::section_named;
use serde::Serialize;

use super::carried::{Carried, OnDisk};

/// Sections with fat binaries: of whole programs, and of code that nvlink linked.
const CODE: [&[u8]; 2] = [b".nv_fatbin", b"__nv_relfatbin"];

/// A package that uses CUDA.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// Whether all CUDA runtimes in it and in its dependencies are served.
    pub ready: bool,
    /// Number of objects with a CUDA runtime.
    pub runtimes: usize,
    /// Number of its fat binaries.
    pub fat_binaries: usize,
    /// Number of these with PTX.
    pub with_ptx: usize,
    /// Compute capabilities with PTX, times ten.
    pub ptx: BTreeSet<u32>,
    /// The same for machine code.
    pub machine_code: BTreeSet<u32>,
    /// Dependencies that use CUDA.
    pub through: BTreeSet<String>,
}

/// A package's metadata, written by its installer.
#[derive(Debug)]
struct Installed {
    name: String,
    version: String,
    needs: BTreeSet<String>,
    files: BTreeSet<PathBuf>,
}

/// Whether a folder contains an installer's metadata of a package.
pub fn describes_package(folder: &Path) -> bool {
    folder
        .extension()
        .is_some_and(|extension| extension == "dist-info")
}

/// The packages in these folders that use CUDA, by name.
pub fn using_cuda(
    folders: &BTreeSet<PathBuf>,
    objects: &BTreeSet<PathBuf>,
    runtimes: &[Carried],
) -> Vec<Package> {
    let installed: Vec<Installed> = folders.iter().filter_map(|folder| read(folder)).collect();
    let mut found: BTreeMap<String, Package> = BTreeMap::new();
    for package in &installed {
        let own: Vec<&Carried> = runtimes
            .iter()
            .filter(|runtime| package.files.contains(&runtime.object))
            .collect();
        let code = code(package.files.intersection(objects));
        if own.is_empty() && code.containers == 0 {
            continue;
        }
        let made = Package {
            name: package.name.clone(),
            version: package.version.clone(),
            ready: own.iter().all(|runtime| runtime.served_by.is_some()),
            runtimes: own.len(),
            fat_binaries: code.containers,
            with_ptx: code.with_text,
            ptx: architectures(&code, |form| match form {
                Form::Text(arch) => Some(arch),
                _ => None,
            }),
            machine_code: architectures(&code, |form| match form {
                Form::Machine(arch) => Some(arch),
                _ => None,
            }),
            through: BTreeSet::new(),
        };
        found.insert(package.name.clone(), made);
    }
    needing(&installed, &mut found);
    found.into_values().collect()
}

/// Adds packages that depend on those found, until a fixed point.
fn needing(installed: &[Installed], found: &mut BTreeMap<String, Package>) {
    loop {
        let mut changed = false;
        for package in installed {
            let through: BTreeSet<String> = package
                .needs
                .iter()
                .filter(|need| found.contains_key(*need) && **need != package.name)
                .cloned()
                .collect();
            let ready = through
                .iter()
                .all(|need| found.get(need).is_some_and(|needed| needed.ready));
            if through.is_empty() {
                continue;
            }
            let made = found.entry(package.name.clone()).or_insert_with(|| {
                changed = true;
                Package {
                    name: package.name.clone(),
                    version: package.version.clone(),
                    ready,
                    runtimes: 0,
                    fat_binaries: 0,
                    with_ptx: 0,
                    ptx: BTreeSet::new(),
                    machine_code: BTreeSet::new(),
                    through: BTreeSet::new(),
                }
            });
            changed |= made.through != through || made.ready && !ready;
            made.ready &= ready;
            made.through = through;
        }
        if !changed {
            return;
        }
    }
}

fn architectures(code: &Forms, of: impl Fn(Form) -> Option<u32>) -> BTreeSet<u32> {
    code.forms.iter().copied().filter_map(of).collect()
}

/// The code in objects.
fn code<'a>(objects: impl Iterator<Item = &'a PathBuf>) -> Forms {
    let mut found = Forms::default();
    for object in objects {
        let Ok(file) = fs::File::open(object) else {
            continue;
        };
        let raw = OnDisk(file);
        for (offset, size) in CODE.iter().filter_map(|name| section_named(&raw, name)) {
            let read = |at: u64, into: &mut [u8]| {
                offset
                    .checked_add(at)
                    .is_some_and(|position| raw.read(position, into))
            };
            // Code that cannot be read cannot run either.
            found.add(forms(size, read).unwrap_or_default());
        }
    }
    found
}

/// Reads METADATA and RECORD (the packaging specifications of Python).
fn read(folder: &Path) -> Option<Installed> {
    let metadata = fs::read(folder.join("METADATA")).ok()?;
    let metadata = String::from_utf8_lossy(&metadata);
    let headers = || metadata.lines().take_while(|line| !line.is_empty());
    let field = |name: &str| {
        headers()
            .find_map(|line| line.strip_prefix(name))
            .map(|value| value.trim().to_owned())
    };
    let needs = headers()
        .filter_map(|line| line.strip_prefix("Requires-Dist:"))
        // Dependencies of extras may be missing, and are not used without them.
        .filter(|need| !need.contains("extra =="))
        .map(|need| normal(need.trim()))
        .collect();
    let record = fs::read_to_string(folder.join("RECORD")).unwrap_or_default();
    let files = record
        .lines()
        .filter_map(|line| line.trim_start_matches('"').split([',', '"']).next())
        .filter_map(|file| fs::canonicalize(folder.parent()?.join(file)).ok())
        .collect();
    Some(Installed {
        name: normal(&field("Name:")?),
        version: field("Version:").unwrap_or_default(),
        needs,
        files,
    })
}

/// The normalized name at the beginning of a requirement.
fn normal(requirement: &str) -> String {
    let end = requirement
        .find(|byte: char| !byte.is_ascii_alphanumeric() && !"-_.".contains(byte))
        .unwrap_or(requirement.len());
    let (name, _) = requirement.split_at(end);
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

/// One line per package. `redirects` is whether programs started here are redirected.
pub fn text(packages: &[Package], redirects: bool) -> String {
    let mut text = String::new();
    for package in packages {
        let verdict = match (package.ready, redirects) {
            (false, _) => "NOT READY, because a CUDA runtime is not served",
            (true, true) => "ready",
            (true, false) => "ready with `paragpu run`",
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{} {}: {verdict}{}",
            package.name,
            package.version,
            about(package)
        );
    }
    text
}

/// A package's use of CUDA.
fn about(package: &Package) -> String {
    let runtimes = match package.runtimes {
        0 => String::new(),
        1 => "; a CUDA runtime".into(),
        more => format!("; CUDA runtimes in {more} objects"),
    };
    let code = match (package.fat_binaries, package.with_ptx) {
        (0, _) => String::new(),
        (_, 0) => format!(
            "; fat binaries without PTX, with machine code for {}",
            range(&package.machine_code)
        ),
        (all, with) if all == with => format!("; PTX for {}", range(&package.ptx)),
        (all, with) => format!(
            "; PTX for {} in {with} of {all} fat binaries",
            range(&package.ptx)
        ),
    };
    let through: Vec<&str> = package.through.iter().map(String::as_str).collect();
    match through.as_slice() {
        [] => runtimes + &code,
        names => format!("{runtimes}{code}; uses {}", names.join(", ")),
    }
}

/// "7.5 to 12.1", for architectures times ten.
fn range(architectures: &BTreeSet<u32>) -> String {
    let name = |arch: &u32| format!("{}.{}", arch / 10, arch % 10);
    match (architectures.first(), architectures.last()) {
        (Some(first), Some(last)) if first != last => format!("{} to {}", name(first), name(last)),
        (Some(only), _) => name(only),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(site: &Path, name: &str, needs: &str, files: &[&str]) -> PathBuf {
        let folder = site.join(format!("{name}-1.0.dist-info"));
        fs::create_dir(&folder).expect("a folder");
        let metadata = format!("Name: {name}\nVersion: 1.0\n{needs}\nRequires-Dist: in-the-text\n");
        fs::write(folder.join("METADATA"), metadata).expect("it is written");
        let record: Vec<String> = files
            .iter()
            .map(|file| format!("{file},sha256=x,1"))
            .collect();
        fs::write(folder.join("RECORD"), record.join("\n")).expect("it is written");
        for file in files {
            fs::write(site.join(file), b"").expect("it is written");
        }
        folder
    }

    fn carried(object: PathBuf, served_by: Option<&'static str>) -> Carried {
        Carried {
            object,
            kind: "static",
            releases: Vec::new(),
            served_by,
            build_id: None,
            detail: String::new(),
        }
    }

    #[test]
    fn a_package_is_as_ready_as_what_it_needs() {
        let site = tempfile::tempdir().expect("a folder");
        let site = fs::canonicalize(site.path()).expect("it is there");
        let folders = BTreeSet::from([
            install(&site, "Good_One", "", &["good.so", "other.so"]),
            install(&site, "bad", "", &["bad.so"]),
            install(&site, "plain", "Requires-Dist: none", &["plain.py"]),
            install(
                &site,
                "user",
                "Requires-Dist: good.one (>=1); python_version > '3'",
                &[],
            ),
            install(
                &site,
                "above",
                "Requires-Dist: user[x]\nRequires-Dist: bad>1",
                &[],
            ),
            install(&site, "extra", "Requires-Dist: bad; extra == 'cuda'", &[]),
        ]);
        let runtimes = [
            carried(site.join("good.so"), Some("libcudart.so.13")),
            carried(site.join("other.so"), Some("libcudart.so.12")),
            carried(site.join("bad.so"), None),
        ];
        let found = using_cuda(&folders, &BTreeSet::new(), &runtimes);
        let facts: Vec<_> = found
            .iter()
            .map(|package| (package.name.as_str(), package.ready, package.runtimes))
            .collect();
        let expected = [
            ("above", false, 0),
            ("bad", false, 1),
            ("good-one", true, 2),
            ("user", true, 0),
        ];
        assert_eq!(facts, expected);
        let said = text(&found, false);
        assert!(
            said.contains("user 1.0: ready with `paragpu run`; uses good-one\n"),
            "{said}"
        );
        assert!(said.contains("above 1.0: NOT READY"), "{said}");
    }

    #[test]
    fn architectures_are_named_as_cuda_does() {
        assert_eq!(range(&BTreeSet::from([75, 121])), "7.5 to 12.1");
        assert_eq!(range(&BTreeSet::from([80])), "8.0");
    }
}
