//! Compiles the kubelet's interfaces.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/dra.proto", "proto/registration.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
