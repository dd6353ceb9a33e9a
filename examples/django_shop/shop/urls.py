"""Where it serves it."""

from django.urls import path

from shop.views import place

urlpatterns = [path("orders", place)]
