// SPDX-License-Identifier: GPL-2.0-only
/*
 * paragpu guest driver: device nodes, and devices by their minor numbers.
 */
#include <linux/cdev.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "paragpu.h"

/* The devices that can be opened, by their minor numbers. */
static DEFINE_XARRAY_ALLOC(paragpu_devices);
static dev_t paragpu_first;
/* One for all devices: a node outside of /dev keeps it while files are open. */
static struct cdev *paragpu_cdev;

static struct class paragpu_class = {
	.name = "paragpu",
};

/**
 * paragpu_get - find the device of a device node
 * @minor: number of the node
 *
 * Context: Process context.
 * Return: The device, to be let go by put_device() of its @dev; or NULL.
 */
struct paragpu_device *paragpu_get(u32 minor)
{
	struct paragpu_device *paragpu;

	xa_lock(&paragpu_devices);
	paragpu = xa_load(&paragpu_devices, minor);
	if (paragpu)
		get_device(&paragpu->dev);
	xa_unlock(&paragpu_devices);
	return paragpu;
}

static void paragpu_free(struct device *dev)
{
	struct paragpu_device *paragpu =
		container_of(dev, struct paragpu_device, dev);
	u32 i, page;

	for (i = 0; i < paragpu->layout.channel_count; i++) {
		for (page = 0; page < 2; page++)
			if (paragpu->channels[i].faded[page])
				__free_page(paragpu->channels[i].faded[page]);
		bitmap_free(paragpu->channels[i].touched);
	}
	cleanup_srcu_struct(&paragpu->guard);
	kvfree(paragpu);
}

/**
 * paragpu_discard - drop a device, which cannot be opened any more
 * @paragpu: the device
 *
 * Its number is free immediately: a device that returns while files of the old
 * one are open gets the same name, and nodes of that number open it.
 *
 * Context: Process context.
 */
void paragpu_discard(struct paragpu_device *paragpu)
{
	xa_erase(&paragpu_devices, MINOR(paragpu->dev.devt));
	put_device(&paragpu->dev);
}

/**
 * paragpu_create - allocate the structure of a device, not yet visible
 * @pdev: the PCI device
 * @found: the layout of its window
 *
 * Context: Process context.
 * Return: The device, to be let go by paragpu_discard(); or an error pointer.
 */
struct paragpu_device *paragpu_create(struct pci_dev *pdev,
				      const struct paragpu_layout *found)
{
	struct paragpu_device *paragpu;
	u32 minor, i;
	int error;

	paragpu = kvzalloc(struct_size(paragpu, channels,
				       found->channel_count), GFP_KERNEL);
	if (!paragpu)
		return ERR_PTR(-ENOMEM);
	error = init_srcu_struct(&paragpu->guard);
	if (error)
		goto free;
	/* Only reserved: the device cannot be opened yet. */
	error = xa_alloc(&paragpu_devices, &minor, NULL,
			 XA_LIMIT(0, PARAGPU_MAX_DEVICES - 1), GFP_KERNEL);
	if (error)
		goto cleanup;
	paragpu->pdev = pdev;
	paragpu->layout = *found;
	mutex_init(&paragpu->lock);
	init_completion(&paragpu->unmapped);
	init_waitqueue_head(&paragpu->freed_wait);
	for (i = 0; i < paragpu->layout.channel_count; i++) {
		paragpu->channels[i].owner = paragpu;
		paragpu->channels[i].index = i;
		init_waitqueue_head(&paragpu->channels[i].wait);
		mutex_init(&paragpu->channels[i].pin_lock);
		xa_init_flags(&paragpu->channels[i].kept, XA_FLAGS_ACCOUNT);
		paragpu->channels[i].touched =
			bitmap_zalloc(paragpu_blocks(found), GFP_KERNEL);
		if (!paragpu->channels[i].touched) {
			error = -ENOMEM;
			goto release;
		}
	}

	device_initialize(&paragpu->dev);
	paragpu->dev.class = &paragpu_class;
	paragpu->dev.parent = &pdev->dev;
	paragpu->dev.devt = MKDEV(MAJOR(paragpu_first), minor);
	paragpu->dev.release = paragpu_free;
	error = dev_set_name(&paragpu->dev, "paragpu%u", minor);
	if (error) {
		paragpu_discard(paragpu);
		return ERR_PTR(error);
	}
	return paragpu;

release:
	while (i--)
		bitmap_free(paragpu->channels[i].touched);
	xa_erase(&paragpu_devices, minor);
cleanup:
	cleanup_srcu_struct(&paragpu->guard);
free:
	kvfree(paragpu);
	return ERR_PTR(error);
}

/**
 * paragpu_add_node - make a device node, through which the device can be opened
 * @paragpu: the device, from paragpu_create()
 *
 * Context: Process context.
 * Return: 0 or a negative error. After an error an older node of this number
 * may have been opened.
 */
int paragpu_add_node(struct paragpu_device *paragpu)
{
	return xa_err(xa_store(&paragpu_devices, MINOR(paragpu->dev.devt),
			       paragpu, GFP_KERNEL)) ?:
		device_add(&paragpu->dev);
}

/**
 * paragpu_init_nodes - reserve the numbers of all device nodes
 *
 * Context: Process context.
 * Return: 0 or a negative error.
 */
int __init paragpu_init_nodes(void)
{
	int error;

	error = alloc_chrdev_region(&paragpu_first, 0, PARAGPU_MAX_DEVICES,
				    KBUILD_MODNAME);
	if (error)
		return error;
	error = class_register(&paragpu_class);
	if (error)
		goto unregister_region;
	error = -ENOMEM;
	paragpu_cdev = cdev_alloc();
	if (!paragpu_cdev)
		goto unregister_class;
	paragpu_cdev->ops = &paragpu_fops;
	paragpu_cdev->owner = THIS_MODULE;
	error = cdev_add(paragpu_cdev, paragpu_first, PARAGPU_MAX_DEVICES);
	if (error)
		goto delete_cdev;
	return 0;

delete_cdev:
	cdev_del(paragpu_cdev);
unregister_class:
	class_unregister(&paragpu_class);
unregister_region:
	unregister_chrdev_region(paragpu_first, PARAGPU_MAX_DEVICES);
	return error;
}

/**
 * paragpu_exit_nodes - give the numbers of the device nodes back
 *
 * Context: Process context, without devices.
 */
void paragpu_exit_nodes(void)
{
	cdev_del(paragpu_cdev);
	class_unregister(&paragpu_class);
	unregister_chrdev_region(paragpu_first, PARAGPU_MAX_DEVICES);
	xa_destroy(&paragpu_devices);
}
