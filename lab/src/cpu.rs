//! Vendor and family of QEMU's processor models.

use peerbar_rule::{Cpu, Vendor};

/// Models by the start of their names, a longer start before a shorter one (QEMU 11,
/// target/i386/cpu.c). Those of `host`, `max` and `base` depend on the machine or the accelerator.
const MODELS: [(&str, Vendor, u32); 36] = [
    ("EPYC-Turin", Vendor::Amd, 0x1a),
    ("EPYC-Genoa", Vendor::Amd, 0x19),
    ("EPYC-Milan", Vendor::Amd, 0x19),
    ("EPYC", Vendor::Amd, 0x17),
    ("Opteron_G5", Vendor::Amd, 0x15),
    ("Opteron_G4", Vendor::Amd, 0x15),
    ("Opteron_G3", Vendor::Amd, 0x10),
    ("Opteron", Vendor::Amd, 0x0f),
    ("phenom", Vendor::Amd, 0x10),
    ("athlon", Vendor::Amd, 0x06),
    ("qemu64", Vendor::Amd, 0x0f),
    ("Dhyana", Vendor::Other, 0x18),
    ("YongFeng", Vendor::Other, 0x07),
    ("kvm64", Vendor::Intel, 0x0f),
    ("kvm32", Vendor::Intel, 0x0f),
    ("qemu32", Vendor::Intel, 0x06),
    ("Broadwell", Vendor::Intel, 0x06),
    ("Cascadelake", Vendor::Intel, 0x06),
    ("ClearwaterForest", Vendor::Intel, 0x06),
    ("Conroe", Vendor::Intel, 0x06),
    ("Cooperlake", Vendor::Intel, 0x06),
    ("Denverton", Vendor::Intel, 0x06),
    ("DiamondRapids", Vendor::Intel, 0x13),
    ("GraniteRapids", Vendor::Intel, 0x06),
    ("Haswell", Vendor::Intel, 0x06),
    ("Icelake", Vendor::Intel, 0x06),
    ("IvyBridge", Vendor::Intel, 0x06),
    ("KnightsMill", Vendor::Intel, 0x06),
    ("Nehalem", Vendor::Intel, 0x06),
    ("Penryn", Vendor::Intel, 0x06),
    ("SandyBridge", Vendor::Intel, 0x06),
    ("SapphireRapids", Vendor::Intel, 0x06),
    ("SierraForest", Vendor::Intel, 0x06),
    ("Skylake", Vendor::Intel, 0x06),
    ("Snowridge", Vendor::Intel, 0x06),
    ("Westmere", Vendor::Intel, 0x06),
];

/// Returns the processor that a guest sees with `-cpu model`, or `None` if the name alone does not
/// tell, or if a property in it may change it.
pub fn of_model(model: &str) -> Option<Cpu> {
    let (name, properties) = model.split_once(',').unwrap_or((model, ""));
    if properties.contains("vendor=") || properties.contains("family=") {
        return None;
    }
    let (_, vendor, family) = MODELS
        .into_iter()
        .find(|(start, ..)| name.starts_with(start))?;
    Some(Cpu { vendor, family })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_by_the_start_of_its_name() {
        let trusted = |model| of_model(model).map(Cpu::is_trusted);
        for model in ["EPYC", "EPYC-Rome-v2", "EPYC-Turin", "EPYC,+svm"] {
            assert_eq!(trusted(model), Some(true), "{model}");
        }
        for model in [
            "Haswell",
            "Opteron_G5",
            "Dhyana-v1",
            "Skylake-Server,-avx512f",
            "qemu64",
        ] {
            assert_eq!(trusted(model), Some(false), "{model}");
        }
        for model in [
            "host",
            "max",
            "EPYC,vendor=GenuineIntel",
            "Haswell,family=23",
        ] {
            assert_eq!(trusted(model), None, "{model}");
        }
    }

    #[test]
    fn no_model_hides_behind_a_shorter_name() {
        for (number, (start, ..)) in MODELS.iter().enumerate() {
            let first = MODELS
                .iter()
                .position(|(other, ..)| start.starts_with(other));
            assert_eq!(first, Some(number), "{start}");
        }
    }
}
