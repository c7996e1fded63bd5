//! The redirector in processes: small objects that carry NVIDIA's runtime, and
//! a stand-in for paragpu's. Needs the CUDA toolkit (`make cuda`) for
//! `libcudart_static.a`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use paragpu_redirect::facts::{Facts, TEXT};
use paragpu_redirect::find;
use paragpu_redirect::image::Image;
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/objects")
        .join(name)
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it runs");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        text(&output.stderr)
    );
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The redirector with the stand-in beside it, and objects.
struct Bench {
    folder: TempDir,
}

impl Bench {
    /// Nothing without the toolkit.
    fn new() -> Option<Self> {
        let archive = Self::archive();
        if !archive.exists() {
            paragpu_corpora::skip("no CUDA toolkit; tests/toolchain/fetch-cuda.sh fetches it");
            return None;
        }
        let bench = Self {
            folder: tempfile::tempdir().expect("temporary folder"),
        };
        let test = env::current_exe().expect("own path");
        let target = test.ancestors().nth(3).expect("target/PROFILE/deps");
        run(Command::new(root().join("guest-frontend/link/link.sh"))
            .arg("libparagpu-redirect.so")
            .arg(bench.folder.path())
            .env("CARGO_TARGET_DIR", target));
        let runtime = bench.path("lib/libcudart.so.13");
        bench.compile("runtime.c", &runtime, &["-shared", "-fPIC"], false);
        bench.compile("program.c", &bench.path("program"), &["-pthread"], false);
        Some(bench)
    }

    fn archive() -> PathBuf {
        root().join(".cache/cuda-13.0/lib/libcudart_static.a")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn compile(&self, file: &str, output: &Path, options: &[&str], carries: bool) {
        let mut command = Command::new("cc");
        command
            .args(["-O1", "-Wall", "-Werror"])
            .args(options)
            .arg("-o")
            .arg(output)
            .arg(source(file));
        if carries {
            command
                .arg(Self::archive())
                .args(["-ldl", "-lrt", "-lpthread"]);
        }
        run(&mut command);
    }

    /// A library that carries the runtime, stripped unless `options` say more.
    fn carrier(&self, name: &str, options: &[&str]) -> PathBuf {
        let path = self.path(name);
        let exports = self.path("exports");
        fs::write(&exports, "{ global: carrier_*; local: *; };").expect("it is written");
        let script = format!("-Wl,--version-script={}", exports.display());
        let mut all = vec!["-shared", "-fPIC", &script];
        all.extend(options);
        self.compile("carrier.c", &path, &all, true);
        path
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", self.path("lib/libparagpu-redirect.so"))
            .env("PARAGPU_REDIRECT", "1");
        command
    }

    fn program(&self, way: &str, arguments: &[&Path]) -> Output {
        self.command(&self.path("program"))
            .arg(way)
            .args(arguments)
            .output()
            .expect("it runs")
    }

    fn is_good(&self, way: &str, arguments: &[&Path]) {
        let output = self.program(way, arguments);
        assert_eq!(
            (text(&output.stdout).trim(), text(&output.stderr).trim()),
            ("good", ""),
            "{way}: {:?}",
            output.status
        );
    }
}

/// Changes a byte of the runtime's code: in a public function, or in internal ones.
fn make_unknown(object: &Path, function: Option<&str>) {
    let mut bytes = fs::read(object).expect("it is there");
    let facts = Facts::parse(TEXT).expect("sound");
    let image = Image::of_file(bytes.as_slice()).expect("an object");
    let mut places = Vec::new();
    find::search(&image, facts.builds(), |place| {
        if place.exact {
            places.push(place);
        }
    });
    let place = places.pop().expect("a known build");
    let mut entries: Vec<_> = facts.entries(&place.build).collect();
    entries.sort_unstable_by_key(|&(_, offset)| offset);
    let room = |pair: &&[(&str, u32)]| pair[1].1 - pair[0].1;
    let mut pairs = entries.windows(2);
    let gap = match function {
        Some(function) => pairs.find(|pair| pair[0].0 == function),
        None => pairs.max_by_key(room),
    };
    let gap = gap.expect("entries");
    let written: Vec<_> = place.build.written().collect();
    let offset = (gap[0].1 + 64..gap[1].1)
        .find(|at| {
            !written
                .iter()
                .any(|(start, length)| (*start..start + length).contains(at))
        })
        .expect("a byte that no linker writes");
    let position = image
        .position(place.block + u64::from(offset), 1)
        .expect("code of the file");
    let position = usize::try_from(position).expect("an offset");
    bytes[position] ^= 1;
    fs::write(object, bytes).expect("it is written");
}

#[test]
fn objects_are_redirected_before_their_constructors() {
    let Some(bench) = Bench::new() else { return };
    // A program that carries a runtime itself, in the forms that linkers make.
    for (name, options) in [
        ("pie", &["-s"][..]),
        ("no-pie", &["-s", "-no-pie"]),
        ("symbols", &[]),
        (
            "sections",
            &[
                "-s",
                "-Wl,--gc-sections",
                "-Wl,-z,now",
                "-Wl,--build-id=none",
            ],
        ),
    ] {
        let program = bench.path(name);
        let mut all = vec!["-DMAIN"];
        all.extend(options);
        bench.compile("carrier.c", &program, &all, true);
        let output = bench.command(&program).output().expect("it runs");
        assert_eq!(
            (text(&output.stdout).trim(), text(&output.stderr).trim()),
            ("good", ""),
            "{name}"
        );
        // Switched off, NVIDIA's own code gets the null pointer.
        let off = bench
            .command(&program)
            .env("PARAGPU_REDIRECT", "0")
            .output()
            .expect("it runs");
        assert!(
            !off.status.success(),
            "{name}: it was redirected in spite of the switch"
        );
    }
}

#[test]
fn objects_that_are_opened_are_redirected_and_keep_their_errors_apart() {
    let Some(bench) = Bench::new() else { return };
    let one = bench.carrier("one.so", &["-s"]);
    let two = bench.carrier("two.so", &["-s"]);
    let three = bench.carrier("three.so", &[]);
    bench.is_good("open", &[&one, &two, &three]);
    bench.is_good("cycles", &[Path::new("10000"), &one]);
    bench.is_good("threads", &[&one, &two, &three]);
    bench.is_good("fork", &[&one, &two, &three]);
}

#[test]
fn programs_with_a_limit_of_file_sizes_are_redirected() {
    let Some(bench) = Bench::new() else { return };
    let one = bench.carrier("one.so", &["-s"]);
    let limited = ["-c", "ulimit -f 0 && exec \"$@\"", "sh"];
    let output = bench
        .command(Path::new("/bin/sh"))
        .args(limited)
        .arg(bench.path("program"))
        .arg("open")
        .arg(&one)
        .output()
        .expect("it runs");
    assert_eq!(
        (text(&output.stdout).trim(), text(&output.stderr).trim()),
        ("good", ""),
        "{:?}",
        output.status
    );
}

#[test]
fn programs_whose_code_may_not_be_changed_run_as_they_are() {
    let Some(bench) = Bench::new() else { return };
    let (sealed, program) = (bench.path("sealed"), bench.path("plain"));
    bench.compile("sealed.c", &sealed, &[], false);
    bench.compile("carrier.c", &program, &["-DPLAIN", "-s"], true);
    let mut command = bench.command(&sealed);
    let output = run(command.arg(&program));
    let errors = text(&output.stderr);
    assert_eq!(
        errors.matches("does not let its code be changed").count(),
        1,
        "{errors}"
    );
    // NVIDIA's own code ran, and found no driver of NVIDIA's.
    assert_ne!(text(&output.stdout).trim(), "2");
    // Without the filter it is redirected.
    assert_eq!(text(&run(&mut bench.command(&program)).stdout), "2\n");
}

#[test]
fn nvidias_shared_runtime_is_redirected_under_any_name() {
    let Some(bench) = Bench::new() else { return };
    let folder = bench.path("nvidia");
    fs::create_dir(&folder).expect("a folder");
    let shared = root().join(".cache/cuda-13.0/lib/libcudart.so.13");
    let copy = folder.join("libcudart.faf08d9a.so.13");
    fs::copy(shared, &copy).expect("a copy");
    let user = bench.path("user.so");
    let copy = copy.to_str().expect("text");
    // DT_RPATH goes before everything else.
    std::os::unix::fs::symlink(copy, folder.join("libcudart.so.13")).expect("a link");
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display());
    bench.compile(
        "carrier.c",
        &user,
        &["-shared", "-fPIC", "-Wl,--no-as-needed", copy, &rpath],
        false,
    );
    bench.is_good("open", &[&user]);
}

#[test]
fn unknown_builds_are_served_by_their_symbols_or_names() {
    let Some(bench) = Bench::new() else { return };
    let named = bench.carrier("named.so", &[]);
    make_unknown(&named, Some("__cudaRegisterVar"));
    bench.is_good("open", &[&named]);
    for (name, options) in [
        ("stripped.so", &["-s"][..]),
        ("relr.so", &["-s", "-Wl,-z,pack-relative-relocs"]),
    ] {
        let stripped = bench.carrier(name, options);
        make_unknown(&stripped, None);
        bench.is_good("open", &[&stripped]);
    }
}

#[test]
fn builds_with_unknown_registration_functions_are_named() {
    let Some(bench) = Bench::new() else { return };
    let stripped = bench.carrier("stripped.so", &["-s", "-Wl,--build-id=0x1234abcd"]);
    make_unknown(&stripped, Some("__cudaRegisterVar"));
    // NVIDIA's own code gets the null pointer: it is not redirected.
    let errors = text(&bench.program("open", &[&stripped]).stderr);
    assert_eq!(errors.matches("unknown build").count(), 1, "{errors}");
    assert!(
        errors.contains("stripped.so (build-id 1234abcd)"),
        "{errors}"
    );
}

#[test]
fn functions_that_are_newer_say_their_name_once() {
    let Some(bench) = Bench::new() else { return };
    let one = bench.carrier("one.so", &["-s"]);
    let output = bench.program("unserved", &[&one]);
    // It is the carrier's last error, too.
    assert_eq!(text(&output.stdout).trim(), "801 801 801");
    let errors = text(&output.stderr);
    assert_eq!(
        errors
            .matches("cudaDeviceSynchronize is not supported")
            .count(),
        1,
        "{errors}"
    );
    // Without paragpu's runtime all calls fail, and one sentence says why.
    fs::remove_file(bench.path("lib/libcudart.so.13")).expect("it was there");
    let output = bench.program("unserved", &[&one]);
    assert_eq!(text(&output.stdout).trim(), "3 3 3");
    assert_eq!(text(&output.stderr).matches("cannot be loaded").count(), 1);
}

#[test]
fn programs_with_gccs_address_sanitizer_start() {
    let Some(bench) = Bench::new() else { return };
    let (source, program) = (bench.path("empty.c"), bench.path("sanitized"));
    fs::write(&source, "int main(void) { return 0; }\n").expect("it is written");
    let built = Command::new("gcc")
        .arg("-fsanitize=address")
        .arg("-o")
        .args([&program, &source])
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        return paragpu_corpora::skip("gcc has no address sanitizer here");
    }
    let output = run(&mut bench.command(&program));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn programs_with_gccs_thread_sanitizer_start() {
    let Some(bench) = Bench::new() else { return };
    let (source, empty) = (bench.path("empty.c"), bench.path("empty"));
    fs::write(&source, "int main(void) { return 0; }\n").expect("it is written");
    let mut built = Command::new("cc");
    built
        .args(["-fsanitize=thread", "-o"])
        .args([&empty, &source]);
    let is_there = built.output().is_ok_and(|output| output.status.success());
    // The sanitizer itself may not run here.
    if !is_there
        || !Command::new(&empty)
            .status()
            .is_ok_and(|status| status.success())
    {
        return paragpu_corpora::skip("gcc has no thread sanitizer here");
    }
    let program = bench.path("sanitized");
    let options = ["-DMAIN", "-DPLAIN", "-fsanitize=thread"];
    bench.compile("carrier.c", &program, &options, true);
    assert_eq!(text(&run(&mut bench.command(&program)).stdout), "2\n");
}
