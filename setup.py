"""Describes the package; the exact versions to install are in requirements/."""

from setuptools import find_packages, setup

setup(
    name="protofssl",
    version="0.1.0",
    description=(
        "Federated semi-supervised learning with prototypical networks, "
        "on TensorFlow Federated"
    ),
    license="Apache-2.0",
    python_requires=">=3.9,<3.12",
    packages=find_packages(
        include=["benchmarks*", "data*", "experiments*", "fl*", "flags*", "models*"]
    ),
    package_data={"experiments": ["*/*/*.flags"]},
    py_modules=["main"],
    install_requires=[
        "absl-py",
        "attrs",
        "grpcio",
        "matplotlib",
        "numpy<2",
        "pillow",
        "psutil",
        "scikit-learn",
        "scipy",
        "tensorflow==2.14.1",
        "tensorflow-datasets",
        "tensorflow-federated==0.87.0",
        "tqdm",
    ],
)
