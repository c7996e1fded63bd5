//! Compiles the interfaces of the kubelet and of KubeVirt.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "proto/dra.proto",
        "proto/registration.proto",
        "proto/kubevirt_info.proto",
        "proto/kubevirt_v1alpha1.proto",
        "proto/kubevirt_v1alpha2.proto",
        "proto/kubevirt_v1alpha3.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
