"""The addresses of the shop, of Django's admin and of duly's dashboard."""

from django.contrib import admin
from django.urls import path

from duly.integrations.django.dashboard import dashboard_urls
from shop.views import place

urlpatterns = [
    path("orders", place),
    path("admin/", admin.site.urls),
    path("duly/", dashboard_urls()),
]
