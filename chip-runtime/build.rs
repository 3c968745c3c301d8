//! Compiles the C++ file that stands between orchestration objects and Rust, where the feature `cxx` asks for it.

fn main() {
    println!("cargo::rerun-if-changed=src/orchestration/shim.cpp");
    #[cfg(feature = "cxx")]
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(true)
        .file("src/orchestration/shim.cpp")
        .compile("chipcomm_runtime_shim");
}
