"""What layers over tokens are made of."""
