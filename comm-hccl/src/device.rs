//! One open device, and the rules for closing it.
//!
//! Every object of a device keeps it open, so that the reset comes after the last of them, in whatever order they are
//! dropped. The first error of a release in a `Drop` is kept, and [`Device::close`] returns it.
//!
//! `abandoned` is relaxed: it publishes nothing, and the vendor itself answers a release that races with it.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::error::{DeviceError, acl, acl_optional};
use crate::ids::{LogicalDevice, PhysicalDevice, VisibleDevice, VisibleDevices};
use crate::load::Vendor;
use crate::runtime::Runtime;
use crate::sys::aclrtContext;
use deadline::Deadline;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// An opaque vendor handle. The vendor checks it in each call; this crate never dereferences it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) *mut c_void);

// SAFETY: a handle names something inside the vendor's runtime, which may be used from any thread that has set a context;
// this crate never dereferences it.
unsafe impl Send for Handle {}
// SAFETY: as above; the handle itself never changes.
unsafe impl Sync for Handle {}

/// A device that this process drives. Clones are the same device; objects made on it keep it open.
///
/// The vendor's context belongs to a thread: the thread that opened the device has it, any other calls
/// [`Device::bind_thread`] first.
#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

/// A process id as the vendor's driver knows it; inside a container that is not `getpid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VendorPid(pub i32);

/// Who destroys what an object stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    This,
    Caller,
}

#[derive(Debug)]
struct Inner {
    vendor: &'static Vendor,
    logical: LogicalDevice,
    visible: VisibleDevice,
    list: VisibleDevices,
    owner: Owner,
    context: Handle,
    /// Set once the device has faulted or is already reset: nothing is released any more.
    abandoned: AtomicBool,
    first_error: Mutex<Option<DeviceError>>,
}

/// The device that this process drives.
static OPEN: Mutex<Option<LogicalDevice>> = Mutex::new(None);

/// How often a device that is being closed checks whether its last object is gone.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The device that was adopted last.
static ADOPTED: Mutex<Weak<Inner>> = Mutex::new(Weak::new());

/// Makes a device the one that this process drives, once `take` has succeeded.
fn claim(device: LogicalDevice, take: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(open) = *open {
        return Err(DeviceError::AlreadyOpen { open, asked: device });
    }
    take()?;
    *open = Some(device);
    Ok(())
}

/// The device that this process has open.
pub(crate) fn open_device() -> Option<LogicalDevice> {
    *OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set_open(device: Option<LogicalDevice>) {
    *OPEN.lock().unwrap_or_else(PoisonError::into_inner) = device;
}

impl Device {
    /// Opens a device. A process opens one at a time.
    pub fn open(
        runtime: Runtime,
        logical: LogicalDevice,
        list: &VisibleDevices,
    ) -> Result<Self, DeviceError> {
        let vendor = runtime.vendor();
        let count = runtime.device_count()?;
        let visible = list.visible(logical).filter(|_| logical.0 < count);
        let visible = visible.ok_or(DeviceError::NoSuchDevice { device: logical, count })?;
        claim(logical, || {
            // SAFETY: takes a number, which the vendor checks.
            unsafe { acl!(vendor, aclrtSetDevice(logical.raw())) }
        })?;
        let mut inner = Inner::new(vendor, logical, visible, list, Owner::This);
        // On an error `inner` is dropped, which resets the device.
        inner.context = current_context(vendor)?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Adopts the device that the calling thread has set. It stays the caller's: it is never reset here.
    pub fn adopt(runtime: Runtime, list: &VisibleDevices) -> Result<Self, DeviceError> {
        let vendor = runtime.vendor();
        let context = current_context(vendor)?;
        let mut current = 0;
        // SAFETY: `current` is a valid place for one number.
        unsafe { acl!(vendor, aclrtGetDevice(&mut current)) }?;
        let logical = u32::try_from(current)
            .map(LogicalDevice)
            .map_err(|_| DeviceError::Unexpected { function: "aclrtGetDevice", what: "a negative id" })?;
        let count = runtime.device_count()?;
        let visible = list.visible(logical).ok_or(DeviceError::NoSuchDevice { device: logical, count })?;
        let mut adopted = ADOPTED.lock().unwrap_or_else(PoisonError::into_inner);
        // A second communicator on the same device shares what the first one adopted.
        if let Some(inner) = adopted.upgrade()
            && inner.context == context
            && !inner.abandoned.load(Relaxed)
        {
            return Ok(Self { inner });
        }
        claim(logical, || Ok(()))?;
        let mut inner = Inner::new(vendor, logical, visible, list, Owner::Caller);
        inner.context = context;
        let inner = Arc::new(inner);
        *adopted = Arc::downgrade(&inner);
        Ok(Self { inner })
    }

    /// The libraries.
    pub fn vendor(&self) -> &'static Vendor {
        self.inner.vendor
    }

    /// This process's number for the device.
    pub fn logical(&self) -> LogicalDevice {
        self.inner.logical
    }

    /// The driver's number for it.
    pub fn visible(&self) -> VisibleDevice {
        self.inner.visible
    }

    /// The list of devices that this process may use.
    pub fn visible_devices(&self) -> &VisibleDevices {
        &self.inner.list
    }

    /// The machine's number for it; where the library has no call for that, the driver's.
    pub fn physical(&self) -> Result<PhysicalDevice, DeviceError> {
        let mut physical = 0;
        // SAFETY: a number and a valid place for one.
        match unsafe {
            acl_optional!(self.vendor(), aclrtGetPhyDevIdByLogicDevId(self.logical().raw(), &mut physical))
        } {
            Err(DeviceError::Unavailable { .. }) => Ok(PhysicalDevice(self.visible().0)),
            Err(error) => Err(error),
            Ok(()) => u32::try_from(physical).map(PhysicalDevice).map_err(|_| DeviceError::Unexpected {
                function: "aclrtGetPhyDevIdByLogicDevId",
                what: "a negative id",
            }),
        }
    }

    /// This process as the driver knows it; peers allow this id to import their memory.
    pub fn vendor_pid(&self) -> Result<VendorPid, DeviceError> {
        let mut pid = 0;
        // SAFETY: a valid place for one number.
        match unsafe { acl_optional!(self.vendor(), aclrtDeviceGetBareTgid(&mut pid)) } {
            Err(DeviceError::Unavailable { .. }) => Ok(VendorPid(std::process::id() as i32)),
            Err(error) => Err(error),
            Ok(()) => Ok(VendorPid(pid)),
        }
    }

    /// Makes the device's context current in the calling thread.
    pub fn bind_thread(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is the one that the vendor made for this device, which is still open.
        unsafe { acl!(self.vendor(), aclrtSetCurrentContext(self.inner.context.0)) }
    }

    /// Makes vendor calls that may switch the thread's ACL context, and restores the context, whatever they return.
    ///
    /// `HcclBarrier` switches it, and the next `aclrtSynchronizeStream` then fails with 507018 (HC-6). The body's error
    /// takes precedence over an error of restoring.
    pub fn keep_context<T>(&self, body: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let saved = current_context(self.vendor())?;
        let done = body();
        let restored = self.restore_context(saved);
        let value = done?;
        restored.map(|()| value)
    }

    /// The same for a release, which runs even when the context could not be saved.
    pub(crate) fn keep_context_in_release(
        &self,
        release: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let saved = current_context(self.vendor());
        let released = release();
        released.and(saved.and_then(|saved| self.restore_context(saved)))
    }

    fn restore_context(&self, saved: Handle) -> Result<(), DeviceError> {
        // SAFETY: the context was this thread's a moment ago, and only closing the device destroys it.
        unsafe { acl!(self.vendor(), aclrtSetCurrentContext(saved.0)) }
    }

    /// Abandons a device that has faulted: nothing on it is released, because a release could block for minutes. Only the
    /// device itself is reset, unless it was adopted. Objects that are dropped later do nothing.
    pub fn abandon(&self) -> Result<(), DeviceError> {
        if self.inner.abandoned.swap(true, Relaxed) {
            return Ok(());
        }
        let reset = self.inner.reset();
        set_open(None);
        reset
    }

    /// Abandons an adopted device on which a call hangs: its owner continues to use it, so that nothing of a call that
    /// returns late may touch it.
    pub(crate) fn forget_if_adopted(&self) {
        if self.inner.owner == Owner::Caller {
            let _ = self.abandon();
        }
    }

    /// Like [`Device::close`], but waits until `until` for objects on a vendor thread that was left behind. When they are
    /// still there, the device is reset under them ([`Device::abandon`]) and the error says so.
    pub fn close_within(self, until: Deadline) -> Result<(), DeviceError> {
        while Arc::strong_count(&self.inner) > 1 && !until.has_passed() {
            std::thread::sleep(CLOSE_POLL_INTERVAL);
        }
        let holders = Arc::strong_count(&self.inner) - 1;
        if holders > 0 {
            self.abandon()?;
            return Err(DeviceError::InUse { device: self.logical(), holders });
        }
        self.close()
    }

    /// Resets the device. Returns the first error of everything that was released on it.
    pub fn close(self) -> Result<(), DeviceError> {
        let (device, holders) = (self.logical(), Arc::strong_count(&self.inner) - 1);
        let inner = Arc::into_inner(self.inner).ok_or(DeviceError::InUse { device, holders })?;
        let earlier = inner.first_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        let reset = if inner.abandoned.swap(true, Relaxed) {
            Ok(())
        } else {
            let reset = inner.reset();
            set_open(None);
            reset
        };
        earlier.map_or(reset, Err)
    }

    /// Whether releases do nothing any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.inner.abandoned.load(Relaxed)
    }

    /// Keeps the error of a release that has no caller to return it to, if it is the first one.
    pub(crate) fn keep_first_error(&self, result: Result<(), DeviceError>) {
        self.inner.keep_first_error(result);
    }
}

impl Inner {
    fn new(
        vendor: &'static Vendor,
        logical: LogicalDevice,
        visible: VisibleDevice,
        list: &VisibleDevices,
        owner: Owner,
    ) -> Self {
        Self {
            vendor,
            logical,
            visible,
            list: list.clone(),
            owner,
            context: Handle(std::ptr::null_mut()),
            abandoned: AtomicBool::new(false),
            first_error: Mutex::default(),
        }
    }

    fn reset(&self) -> Result<(), DeviceError> {
        if self.owner == Owner::Caller {
            return Ok(());
        }
        // SAFETY: takes the number that aclrtSetDevice accepted.
        unsafe { acl!(self.vendor, aclrtResetDevice(self.logical.raw())) }
    }

    fn keep_first_error(&self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            self.first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.abandoned.get_mut() {
            // There is no caller to report an error to; `close` reports it.
            let _ = self.reset();
            set_open(None);
        }
    }
}

fn current_context(vendor: &'static Vendor) -> Result<Handle, DeviceError> {
    let mut context: aclrtContext = std::ptr::null_mut();
    // SAFETY: `context` is a valid place for one handle.
    unsafe { acl!(vendor, aclrtGetCurrentContext(&mut context)) }?;
    Ok(Handle(context))
}
