//! The options that a kernel was built with.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bzimage;
use crate::error::io_error;
use crate::unpack::unpack;
use crate::{ImageError, modules};

/// The mark that `CONFIG_IKCONFIG` puts before the packed configuration (Linux,
/// `kernel/configs.c`).
const IKCONFIG: &[u8] = b"IKCFG_ST";

/// A configuration, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    text: String,
    options: BTreeMap<String, String>,
    origin: PathBuf,
}

impl KernelConfig {
    /// Reads the configuration in the file `path`, as `make` writes it to `.config`.
    ///
    /// # Errors
    /// [`ImageError::Io`] if the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, ImageError> {
        let text = fs::read_to_string(path).map_err(io_error("read", path))?;
        Ok(Self::parse(text, path))
    }

    /// Finds the configuration of the kernel in `image` with the modules `modules`: in its build
    /// tree, in `/boot`, or in the image itself (`CONFIG_IKCONFIG`). Returns `None` if there is
    /// none.
    ///
    /// # Errors
    /// [`ImageError::Io`] if an existing file cannot be read.
    pub fn find(
        image: &Path,
        modules: Option<&Path>,
        release: &str,
    ) -> Result<Option<Self>, ImageError> {
        let named = format!("config-{release}");
        let of_modules = modules
            .into_iter()
            .flat_map(|dir| [".config", "config", "build/.config"].map(|file| dir.join(file)));
        // A bzImage is four folders below its build tree, a vmlinux directly in it.
        let of_image = image.ancestors().skip(1).take(4);
        let of_image = of_image.map(|dir| dir.join(".config"));
        let beside = [
            image.with_file_name(&named),
            Path::new("/boot").join(&named),
        ];
        let mut candidates = of_modules.chain(of_image).chain(beside);
        match candidates.find(|path| path.is_file()) {
            Some(path) => Self::read(&path).map(Some),
            None => Self::in_image(image),
        }
    }

    fn in_image(image: &Path) -> Result<Option<Self>, ImageError> {
        let bytes = fs::read(image).map_err(io_error("read", image))?;
        let kernel = bzimage::unpacked(&bytes);
        let packed = kernel.as_deref().unwrap_or(&bytes);
        Ok(embedded(packed).map(|text| Self::parse(text, image)))
    }

    fn parse(text: String, origin: &Path) -> Self {
        let options = text.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("CONFIG_")?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        Self {
            options: options.collect(),
            origin: origin.to_path_buf(),
            text,
        }
    }

    /// Returns all of it, as `make` writes it to `.config`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the value of an option, written without `CONFIG_`, or `None` if it is not set.
    #[must_use]
    pub fn value(&self, option: &str) -> Option<&str> {
        self.options.get(option).map(String::as_str)
    }

    /// Returns `true` if the option is built in or a module.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        matches!(self.value(option), Some("y" | "m"))
    }

    /// Returns `true` if the module with this name is built in.
    pub(crate) fn builds_in(&self, module: &str) -> bool {
        let option = modules::option_of(module);
        let option = option.trim_start_matches("CONFIG_");
        self.value(option) == Some("y")
    }

    /// Returns the file from which it was read: a configuration, or the kernel's image.
    #[must_use]
    pub fn origin(&self) -> &Path {
        &self.origin
    }
}

/// Returns the configuration inside an unpacked kernel (found like in Linux's
/// `scripts/extract-ikconfig`).
fn embedded(kernel: &[u8]) -> Option<String> {
    let start = bzimage::find(kernel, IKCONFIG)?.checked_add(IKCONFIG.len())?;
    let text = unpack(kernel.get(start..)?).ok()?;
    String::from_utf8(text.into_owned()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bzimage::tests::{bzimage, elf};
    use crate::unpack::tests::gzip;

    const TEXT: &str = "#\n# Linux/x86 7.3.4 Kernel Configuration\n#\nCONFIG_PCI=y\nCONFIG_BLK_DEV_NVME=m\n\
                        # CONFIG_PCI_P2PDMA is not set\nCONFIG_LOCALVERSION=\"-a=b\"\n";

    fn check(config: &KernelConfig) {
        assert!(config.has("PCI") && config.has("BLK_DEV_NVME"));
        assert!(!config.has("PCI_P2PDMA") && !config.has("LOCALVERSION"));
        assert_eq!(config.value("LOCALVERSION"), Some("\"-a=b\""));
        assert_eq!(config.value("PCI_P2PDMA"), None);
        assert!(!config.builds_in("nvme"));
        assert_eq!(config.text(), TEXT);
    }

    fn kernel_with_config() -> Vec<u8> {
        let mut kernel = elf(b"Xen\0", 18);
        kernel.extend(IKCONFIG);
        kernel.extend(gzip(TEXT.as_bytes()));
        kernel.extend(b"IKCFG_ED and the rest");
        kernel
    }

    #[test]
    fn config_file_is_found_before_that_of_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let boot = dir.path().join("arch/x86/boot");
        fs::create_dir_all(&boot).unwrap();
        let image = boot.join("bzImage");
        fs::write(&image, bzimage(&gzip(&kernel_with_config()), 1)).unwrap();
        let find = || KernelConfig::find(&image, None, "7.3-x").unwrap().unwrap();
        assert_eq!(find().origin(), image);
        fs::write(boot.join("config-7.3-x"), TEXT).unwrap();
        assert_eq!(find().origin(), boot.join("config-7.3-x"));
        fs::write(dir.path().join(".config"), TEXT).unwrap();
        assert_eq!(find().origin(), dir.path().join(".config"));
        check(&find());
    }

    #[test]
    fn ikconfig_is_read_from_packed_and_unpacked_images() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("kernel");
        for content in [
            kernel_with_config(),
            bzimage(&gzip(&kernel_with_config()), 1),
        ] {
            fs::write(&image, content).unwrap();
            check(&KernelConfig::find(&image, None, "x").unwrap().unwrap());
        }
    }

    #[test]
    fn kernel_without_config_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("kernel");
        let whole = kernel_with_config();
        let start = bzimage::find(&whole, IKCONFIG).unwrap();
        for content in [b"".as_slice(), b"no kernel", &whole[..start + 20]] {
            fs::write(&image, content).unwrap();
            assert_eq!(KernelConfig::find(&image, None, "x").unwrap(), None);
        }
    }
}
