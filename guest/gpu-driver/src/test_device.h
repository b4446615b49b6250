/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The device file of a test module. Its requests are about objects, which belong to the open file
 * and have an id there. An argument about one object starts with its id.
 */
#ifndef PEERBAR_GPU_TEST_DEVICE_H
#define PEERBAR_GPU_TEST_DEVICE_H

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

/* Bytes of the largest argument. */
#define TEST_ARGUMENT_MAX 64

struct test_objects {
	struct mutex lock;	/* for modules that execute one request at a time */
	struct xarray by_id;
};

struct test_device {
	struct miscdevice misc;
	/* The argument of a successful request is copied out; a result in it may be an error. */
	int (*serve)(struct test_objects *objects, unsigned int command, void *argument);
	/* Frees an object when the file is closed. */
	void (*let_go)(void *object);
};

struct test_opened {
	const struct test_device *device;
	struct test_objects objects;
};

/* A request about one object. */
struct test_request {
	unsigned int command;
	int (*serve)(void *object, void *argument);
};

static inline int test_objects_add(struct test_objects *objects, u32 *id, void *object)
{
	return xa_alloc(&objects->by_id, id, object, xa_limit_31b, GFP_KERNEL);
}

/* The object that the argument is about, or NULL. */
static inline void *test_objects_find(struct test_objects *objects, const void *argument)
{
	return xa_load(&objects->by_id, *(const u32 *)argument);
}

static inline int test_serve(const struct test_request *requests, size_t count,
			     unsigned int command, void *object, void *argument)
{
	size_t i;

	for (i = 0; i < count; i++) {
		if (requests[i].command == command)
			return requests[i].serve(object, argument);
	}
	return -ENOTTY;
}

static long test_ioctl(struct file *filp, unsigned int command, unsigned long address)
{
	struct test_opened *opened = filp->private_data;
	u8 argument[TEST_ARGUMENT_MAX] __aligned(8) = {};
	void __user *user = (void __user *)address;
	size_t size = _IOC_SIZE(command);
	int error;

	if (_IOC_TYPE(command) != 'P' || size < sizeof(u32) || size > sizeof(argument))
		return -ENOTTY;
	if (copy_from_user(argument, user, size))
		return -EFAULT;
	error = opened->device->serve(&opened->objects, command, argument);
	if (error)
		return error;
	if (_IOC_DIR(command) & _IOC_READ && copy_to_user(user, argument, size))
		return -EFAULT;
	return 0;
}

static int test_open(struct inode *inode, struct file *filp)
{
	struct test_opened *opened = kzalloc(sizeof(*opened), GFP_KERNEL);

	if (!opened)
		return -ENOMEM;
	opened->device = container_of(filp->private_data, struct test_device, misc);
	mutex_init(&opened->objects.lock);
	xa_init_flags(&opened->objects.by_id, XA_FLAGS_ALLOC1);
	filp->private_data = opened;
	return 0;
}

static int test_release(struct inode *inode, struct file *filp)
{
	struct test_opened *opened = filp->private_data;
	unsigned long id;
	void *object;

	xa_for_each(&opened->objects.by_id, id, object)
		opened->device->let_go(object);
	xa_destroy(&opened->objects.by_id);
	kfree(opened);
	return 0;
}

static const struct file_operations test_operations = {
	.owner = THIS_MODULE,
	.open = test_open,
	.release = test_release,
	.unlocked_ioctl = test_ioctl,
};

static inline int test_device_register(struct test_device *device)
{
	device->misc.minor = MISC_DYNAMIC_MINOR;
	device->misc.fops = &test_operations;
	device->misc.mode = 0600;
	return misc_register(&device->misc);
}

static inline void test_device_deregister(struct test_device *device)
{
	misc_deregister(&device->misc);
}

#define module_test_device(device) \
	module_driver(device, test_device_register, test_device_deregister)

#endif
